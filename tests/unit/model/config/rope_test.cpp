#include <gtest/gtest.h>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::model {
namespace {

/// head_dim 16, 4096 positions.
ModelConfig rope_config(const std::string& changes) {
  auto all = nlohmann::json::parse(R"({"head_dim": 16, "max_position_embeddings": 4096})");
  all.update(nlohmann::json::parse(changes));
  return family_config("llama", "LlamaForCausalLM", all.dump());
}

/// Golden values: LlamaRotaryEmbedding(config).inv_freq of transformers 5.17, as hexadecimal floats.
void expect_frequencies(const ModelConfig& config, double attention_factor, const std::vector<float>& expected) {
  EXPECT_DOUBLE_EQ(rope_attention_factor(config), attention_factor);
  const auto got = rope_inv_freq(config);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], expected[i] * 1.2e-7) << i;  // one unit in the last place of powf
  }
}

std::string refusal(const std::string& changes) {
  try {
    rope_config(changes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Rope, DefaultFrequenciesAreThoseOfTransformers) {
  expect_frequencies(rope_config(R"({"max_position_embeddings": 128})"), 1.0,
                     {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.99999ap-4F, 0x1.030dc6p-5F, 0x1.47ae14p-7F, 0x1.9e7c70p-9F,
                      0x1.0624dep-10F, 0x1.4b96c0p-12F});
}

TEST(Rope, LinearFrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      rope_config(R"({"max_position_embeddings": 128, "rope_scaling": {"rope_type": "linear", "factor": 2.5}})"), 1.0,
      {0x1.99999ap-2F, 0x1.030dc4p-3F, 0x1.47ae14p-5F, 0x1.9e7c70p-7F, 0x1.0624dcp-8F, 0x1.4b96c0p-10F, 0x1.a36e30p-12F,
       0x1.094566p-13F});
}

TEST(Rope, DynamicAtTheOriginalLengthFrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      rope_config(R"({"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 2.1}})"), 1.0,
      {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.99999ap-4F, 0x1.030dc6p-5F, 0x1.47ae14p-7F, 0x1.9e7c70p-9F, 0x1.0624dep-10F,
       0x1.4b96c0p-12F});
}

TEST(Rope, Llama3FrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      rope_config(
          R"({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}})"),
      1.0,
      {0x1.000000p+0F, 0x1.8d2760p-3F, 0x1.341190p-5F, 0x1.58150cp-10F, 0x1.72ba42p-13F, 0x1.1f91f0p-15F,
       0x1.be2188p-18F, 0x1.5a0f4ep-20F});
}

TEST(Rope, YarnFrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      rope_config(
          R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}})"),
      1.138629436111989,
      {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.4ccccep-4F, 0x1.43d138p-6F, 0x1.1eb852p-8F, 0x1.9e7c70p-11F, 0x1.0624dep-12F,
       0x1.4b96c0p-14F});
}

TEST(Rope, YarnExtendsTheContext) {
  const auto context = [](const std::string& changes) { return rope_config(changes).context_length(); };
  EXPECT_EQ(context("{}"), 4096);
  EXPECT_EQ(context(R"({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})"), 4096);
  EXPECT_EQ(context(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"), 16384);
  EXPECT_EQ(
      context(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}})"),
      8192);
  EXPECT_EQ(
      context(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}})"),
      4096);
  EXPECT_GT(context(R"({"rope_scaling": {"rope_type": "yarn", "factor": 1e300}})"), 4096);
}

TEST(Rope, YarnWithEveryOptionFrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      rope_config(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
             "truncate": false, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5}})"),
      1.0648216253695715,
      {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.99999ap-4F, 0x1.32690ep-6F, 0x1.47ae14p-9F, 0x1.9e7c70p-11F, 0x1.0624dep-12F,
       0x1.4b96c0p-14F});
}

TEST(Rope, LongropeShortFrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      rope_config(R"({"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 2, 3],
             "long_factor": [4, 4, 4, 4, 4, 4, 4, 4], "original_max_position_embeddings": 1024}})"),
      1.0954451150103321,
      {0x1.000000p+0F, 0x1.266118p-2F, 0x1.555556p-4F, 0x1.8e8b58p-6F, 0x1.d41d42p-8F, 0x1.1452f6p-9F, 0x1.0624dep-11F,
       0x1.ba1e54p-14F});
}

TEST(Rope, ReadsItsThreeSpellingsAlike) {
  const auto now = rope_config(
      R"({"rope_theta": "<absent>", "rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0}})");
  const auto before = rope_config(R"({"rope_theta": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})");
  const auto legacy = rope_config(R"({"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}})");
  EXPECT_EQ(now.rope.type, RopeType::kLinear);
  EXPECT_EQ(now.rope.theta, 5000.0);
  EXPECT_EQ(rope_inv_freq(now), rope_inv_freq(before));
  EXPECT_EQ(rope_inv_freq(now), rope_inv_freq(legacy));
  const auto plain = rope_config(R"({"rope_theta": 5000.0, "rope_scaling": null})");
  EXPECT_EQ(plain.rope.type, RopeType::kDefault);
  EXPECT_NE(rope_inv_freq(now), rope_inv_freq(plain));
}

TEST(Rope, PrefersTheKeysThatTransformersPrefers) {
  const auto config = rope_config(
      R"({"rope_theta": 7.0, "rope_scaling": {"rope_type": "default", "type": "yarn", "rope_theta": 5000.0},
          "rope_parameters": {"rope_type": "linear", "factor": 2.0}})");
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.rope.theta, 5000.0);
  const std::string yarn = R"("rope_scaling": {"rope_type": "yarn", "factor": 2.0)";
  EXPECT_EQ(rope_config("{" + yarn + "}}").rope.original_max_position_embeddings, 4096);
  EXPECT_EQ(
      rope_config("{" + yarn + R"(, "original_max_position_embeddings": 512}})").rope.original_max_position_embeddings,
      512);
  EXPECT_EQ(rope_config("{" + yarn +
                        R"(, "original_max_position_embeddings": 512}, "original_max_position_embeddings": 256})")
                .rope.original_max_position_embeddings,
            256);
}

TEST(Rope, RefusesUnknownKinds) {
  EXPECT_NE(refusal(R"({"rope_scaling": {"rope_type": "su"}})").find("rope_scaling.rope_type: \"su\" is not supported"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"type": "mrope"}})").find("rope_scaling.type: \"mrope\""), std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"rope_type": 1}})").find("string"), std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": "linear"})").find("object"), std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]}})").find("multimodal RoPE"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"factor": 4.0}})").find("factor: has no effect without rope_type"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"partial_rotary_factor": 0.5})").find("partial_rotary_factor"), std::string::npos);
  EXPECT_NE(refusal(R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})").find("per layer type"),
            std::string::npos);
  EXPECT_EQ(refusal(R"({"partial_rotary_factor": 1.0})"), "accepted");
}

TEST(Rope, RefusesMissingOrImpossibleKeys) {
  const auto scaled = [](const std::string& keys) {
    return refusal(R"({"rope_scaling": {"rope_type": )" + keys + "}}");
  };
  for (const char* type : {"linear", "dynamic", "yarn", "llama3"}) {
    EXPECT_NE(scaled("\"" + std::string(type) + "\"").find("factor: the key is missing"), std::string::npos) << type;
  }
  EXPECT_NE(scaled(R"("linear", "factor": 0)").find("above zero"), std::string::npos);
  EXPECT_NE(scaled(R"("linear", "factor": "2")").find("a number"), std::string::npos);
  EXPECT_NE(scaled(R"("yarn", "factor": -4)").find("factor: is -4; a number above zero"), std::string::npos);
  EXPECT_NE(scaled(R"("longrope", "short_factor": "1", "long_factor": [1])")
                .find("short_factor: is \"1\"; a list of numbers"),
            std::string::npos);
  EXPECT_NE(scaled(R"("llama3", "factor": 2)").find("low_freq_factor: the key is missing"), std::string::npos);
  EXPECT_NE(scaled(R"("llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4)").find("larger than"),
            std::string::npos);
  EXPECT_NE(scaled(R"("longrope", "long_factor": [1])").find("short_factor: the key is missing"), std::string::npos);
  EXPECT_NE(scaled(R"("longrope", "short_factor": [1], "long_factor": [1])").find("head_dim / 2 = 8"),
            std::string::npos);
}

TEST(Rope, RefusesLengthsWhereARowWouldDependOnItsBatchMates) {
  const auto dynamic = rope_config(R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})");
  EXPECT_NO_THROW(check_rope_supported(dynamic, 4096));
  EXPECT_THROW(check_rope_supported(dynamic, 4097), FormatError);
  const auto longrope = rope_config(
      R"({"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1],
          "long_factor": [4, 4, 4, 4, 4, 4, 4, 4], "original_max_position_embeddings": 1024}})");
  EXPECT_NO_THROW(check_rope_supported(longrope, 1024));
  EXPECT_THROW(check_rope_supported(longrope, 1025), FormatError);
  EXPECT_EQ(dynamic.supported_length(), 4096);
  EXPECT_EQ(longrope.supported_length(), 1024);
  const auto yarn = rope_config(
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}})");
  EXPECT_EQ(yarn.supported_length(), yarn.context_length());
  EXPECT_NO_THROW(
      check_rope_supported(rope_config(R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})"), 100'000));
}

}  // namespace
}  // namespace lora_train::model
