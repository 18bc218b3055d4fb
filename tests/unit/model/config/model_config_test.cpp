#include "lora_train/model/families/model_config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "model/families/family.h"
#include "support/expect_refused.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::model {
namespace {

using Windows = std::vector<std::int64_t>;

ModelConfig mistral(const std::string& changes = "{}") { return family_config("mistral", changes); }
ModelConfig qwen3(const std::string& changes = "{}") { return family_config("qwen3", changes); }
ModelConfig llama(const std::string& changes = "{}") { return family_config("llama", changes); }

/// The refusal must name `key`.
void expect_refused(const std::string& changes, const std::string& key, const std::string& expected) {
  SCOPED_TRACE(changes);
  testing_support::expect_refused([&] { config_with(changes); }, "dir/config.json: " + key, {expected});
}

TEST(ModelConfig, ReadsSizesAndNames) {
  const auto config = config_with(R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null})");
  EXPECT_EQ(config.family, Family::kQwen2);
  EXPECT_EQ(config.architecture, "Qwen2ForCausalLM");
  EXPECT_EQ((std::vector<std::int64_t>{config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads,
                                       config.head_dim, config.intermediate_size, config.vocab_size,
                                       config.max_position_embeddings}),
            (std::vector<std::int64_t>{16, 2, 4, 2, 4, 24, 32, 128}));
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.torch_dtype, "bfloat16");
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, std::nullopt);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(config_with(R"({"dtype": "float32"})").torch_dtype, "float32");
}

TEST(ModelConfig, GivesEachFamilyItsBiasesAndNorms) {
  const auto qwen2 = config_with();
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  EXPECT_TRUE(!qwen3().qkv_bias && !qwen3().o_bias && qwen3().qk_norm);
  const auto biased = qwen3(R"({"attention_bias": true})");
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && !biased.mlp_bias);
  EXPECT_TRUE(!mistral(R"({"attention_bias": true})").qkv_bias && !mistral().o_bias && !mistral().qk_norm);
  EXPECT_TRUE(!llama().qkv_bias && !llama().o_bias && !llama().mlp_bias);
  const auto all = llama(R"({"attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(all.qkv_bias && all.o_bias && all.mlp_bias);
}

TEST(ModelConfig, TellsAbsentHeadDimAndKvHeadsFromNull) {
  EXPECT_EQ(qwen3().head_dim, 128);
  EXPECT_EQ(qwen3(R"({"head_dim": 6})").head_dim, 6);
  EXPECT_THROW(qwen3(R"({"head_dim": null})"), FormatError);
  EXPECT_EQ(mistral(R"({"head_dim": null})").head_dim, 4);
  EXPECT_EQ(mistral(R"({"head_dim": 10})").head_dim, 10);
  EXPECT_EQ(llama(R"({"head_dim": null})").head_dim, 4);
  EXPECT_EQ(llama(R"({"num_key_value_heads": "<absent>"})").num_kv_heads, 4);
  EXPECT_EQ(llama(R"({"num_key_value_heads": null})").num_kv_heads, 4);
  EXPECT_EQ(config_with(R"({"num_key_value_heads": null})").num_kv_heads, 4);
  EXPECT_EQ(mistral(R"({"num_key_value_heads": "<absent>", "num_attention_heads": 8})").num_kv_heads, 8);
  expect_refused(R"({"num_key_value_heads": "<absent>"})", "num_key_value_heads",
                 "32 (the default, the key is missing)");
}

TEST(ModelConfig, TellsAbsentSlidingWindowFromNullAndUsesQwensOnlyWhenSwitchedOn) {
  EXPECT_EQ(mistral().layer_window, (Windows{4096, 4096}));
  EXPECT_EQ(mistral(R"({"sliding_window": null})").layer_window, (Windows{0, 0}));
  EXPECT_EQ(mistral(R"({"sliding_window": 3})").layer_window, (Windows{3, 3}));
  EXPECT_EQ(llama(R"({"sliding_window": 3})").layer_window, (Windows{0, 0}));
  const auto qwen2 = [](const std::string& keys) { return config_with("{" + keys + "}").layer_window; };
  EXPECT_EQ(qwen2(R"("sliding_window": 8, "max_window_layers": 0)"), (Windows{0, 0}));
  EXPECT_EQ(qwen2(R"("use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0)"), (Windows{0, 0}));
  const std::string on = R"("use_sliding_window": true, )";
  EXPECT_EQ(qwen2(on + R"("max_window_layers": 1)"), (Windows{0, 4096}));
  EXPECT_EQ(qwen2(on + R"("sliding_window": null, "max_window_layers": 1)"), (Windows{0, 0}));
  EXPECT_EQ(qwen2(on + R"("sliding_window": 8, "max_window_layers": 0)"), (Windows{8, 8}));
  EXPECT_EQ(qwen2(on + R"("sliding_window": 8)"), (Windows{0, 0}));
  EXPECT_EQ(qwen3("{" + on + R"("sliding_window": 8, "max_window_layers": 1})").layer_window, (Windows{0, 8}));
}

TEST(ModelConfig, FollowsLayerTypes) {
  const std::string window = R"({"use_sliding_window": true, "sliding_window": 8, "layer_types": )";
  EXPECT_EQ(config_with(window + R"(["sliding_attention", "full_attention"]})").layer_window, (Windows{8, 0}));
  EXPECT_EQ(config_with(window + "null, \"max_window_layers\": 1}").layer_window, (Windows{0, 8}));
  expect_refused(window + R"(["full_attention"]})", "layer_types", "1 entries for 2 layers");
  expect_refused(window + R"(["full_attention", "chunked_attention"]})", "layer_types",
                 "\"chunked_attention\" is not supported");
  expect_refused(window + R"([1, 2]})", "layer_types", "list of strings");
  expect_refused(R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types", "there is no window");
  const std::string mixed = R"({"layer_types": ["full_attention", "sliding_attention"]})",
                    where = "config.json: layer_types";
  testing_support::expect_refused([&] { mistral(mixed); }, where, {"sliding_window"});
  testing_support::expect_refused([&] { llama(mixed); }, where, {"this family"});
  EXPECT_NO_THROW(mistral(R"({"layer_types": ["sliding_attention", "sliding_attention"]})"));
}

TEST(ModelConfig, TakesTheDefaultsOfTransformersForAbsentKeys) {
  const auto config = config_with(
      R"({"rms_norm_eps": "<absent>", "rope_theta": "<absent>", "tie_word_embeddings": "<absent>",
          "hidden_act": "<absent>", "max_position_embeddings": "<absent>", "torch_dtype": "<absent>"})");
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 32768);
  EXPECT_EQ(config.torch_dtype, "");
  EXPECT_EQ(config.bos_token_id, std::nullopt);
  EXPECT_EQ(llama(R"({"max_position_embeddings": "<absent>"})").max_position_embeddings, 2048);
  EXPECT_EQ(mistral(R"({"max_position_embeddings": "<absent>"})").max_position_embeddings, 131072);
  EXPECT_EQ(llama().bos_token_id, 1);
  EXPECT_EQ(llama().eos_token_ids, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(llama(R"({"bos_token_id": null, "eos_token_id": null})").bos_token_id, std::nullopt);
  EXPECT_TRUE(llama(R"({"eos_token_id": null})").eos_token_ids.empty());
}

TEST(ModelConfig, RefusesMissingEssentialKeys) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    expect_refused("{\"" + std::string(key) + "\": \"<absent>\"}", key, "missing");
    expect_refused("{\"" + std::string(key) + "\": null}", key, "whole number");
  }
}

TEST(ModelConfig, RefusesWrongTypesAndRanges) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                          "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (const char* value :
         {"0", "-4", "16.0", "\"16\"", "true", "[16]", "1e30", "1099511627777", "18446744073709551615"}) {
      expect_refused("{\"" + std::string(key) + "\": " + value + "}", key, "a whole number from 1");
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta", "initializer_range"}) {
    for (const char* value : {"0", "-1.0", "\"1\"", "null", "true", "{}"}) {
      expect_refused("{\"" + std::string(key) + "\": " + value + "}", key, "");
    }
  }
  expect_refused(R"({"tie_word_embeddings": 1})", "tie_word_embeddings", "true or false");
  expect_refused(R"({"tie_word_embeddings": null})", "tie_word_embeddings", "true or false");
  expect_refused(R"({"use_sliding_window": "yes"})", "use_sliding_window", "true or false");
  expect_refused(R"({"eos_token_id": "</s>"})", "eos_token_id", "whole number");
  expect_refused(R"({"eos_token_id": [1, -5]})", "eos_token_id", "is -5; a whole number");
  expect_refused(R"({"bos_token_id": 2.5})", "bos_token_id", "whole number");
  expect_refused(R"({"rms_norm_eps": 1e6})", "rms_norm_eps", "is above 1; models have 1e-5 or 1e-6");
  expect_refused(R"({"use_sliding_window": true, "sliding_window": 0})", "sliding_window", "from 1 to");
  expect_refused(R"({"use_sliding_window": true, "sliding_window": "4k"})", "sliding_window", "from 1 to");
  expect_refused(R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": -1})", "max_window_layers",
                 "from 0 to");
  expect_refused(R"({"torch_dtype": 16})", "torch_dtype", "string");
}

TEST(ModelConfig, RefusesSizesThatDoNotFitTogether) {
  expect_refused(R"({"num_key_value_heads": 3})", "num_key_value_heads", "does not divide num_attention_heads");
  expect_refused(R"({"num_key_value_heads": 8})", "num_key_value_heads", "does not divide");
  expect_refused(R"({"num_attention_heads": 6})", "num_attention_heads", "6 does not divide hidden_size");
  expect_refused(R"({"hidden_size": 20})", "head_dim", "5 is odd");
  expect_refused(R"({"head_dim": 7})", "head_dim", "7 is odd");
  expect_refused(R"({"num_attention_heads": 65536, "num_key_value_heads": 1, "head_dim": 128})", "head_dim",
                 "the maximum is 4194304");
}

TEST(ModelConfig, RefusesArchitecturesItDoesNotKnow) {
  const std::string supported = "Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3_5ForCausalLM, Qwen3NextForCausalLM";
  expect_refused(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})", "architectures",
                 "\"GPT2LMHeadModel\"");
  expect_refused(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})", "architectures", supported);
  expect_refused(R"({"architectures": ["Qwen2ForSequenceClassification"]})", "architectures", supported);
  expect_refused(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"})", "architectures",
                 "Qwen3MoeForCausalLM");
  expect_refused(R"({"architectures": ["LlamaForCausalLM"]})", "model_type", "does not belong to");
  expect_refused(R"({"architectures": "<absent>", "model_type": "gemma"})", "model_type", supported);
  expect_refused(R"({"architectures": [], "model_type": null})", "architectures", supported);
  expect_refused(R"({"architectures": "Qwen2ForCausalLM"})", "architectures", "list of strings");
  expect_refused(R"({"model_type": 2})", "model_type", "a string was expected");
  EXPECT_EQ(config_with(R"({"architectures": null, "model_type": "llama"})").architecture, "LlamaForCausalLM");
  EXPECT_EQ(config_with(R"({"model_type": "<absent>"})").family, Family::kQwen2);
}

TEST(ModelConfig, RefusesByNameWhatIsNotComputed) {
  expect_refused(R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config", "\"gptq\"");
  expect_refused(R"({"quantization_config": "nf4"})", "quantization_config", "an object was expected");
  expect_refused(R"({"hidden_act": "gelu"})", "hidden_act", "\"gelu\" is not supported; expected silu");
  expect_refused(R"({"num_local_experts": 8})", "num_local_experts", "mixture-of-experts");
  expect_refused(R"({"num_experts": 1})", "num_experts", "mixture-of-experts");
  EXPECT_NO_THROW(config_with(R"({"num_experts": 0, "num_local_experts": 0, "n_routed_experts": null})"));
  expect_refused(R"({"attention_dropout": 0.1})", "attention_dropout", "set it to 0");
  expect_refused(R"({"use_mrope": true})", "use_mrope", "multimodal");
  EXPECT_NO_THROW(config_with(R"({"quantization_config": null, "attention_dropout": 0.0})"));
}

/// config_text() with `from` replaced.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = config_text();
  return text.replace(text.find(from), from.size(), to);
}

TEST(ModelConfig, RefusesTextThatIsNoObject) {
  const std::string good = config_text();
  const std::pair<std::string, const char*> cases[] = {
      {"", "the file is empty"},
      {" \n", "the file is empty"},
      {good.substr(0, good.size() - 20), "not valid JSON at byte"},
      {"<html><body>404</body></html>", "not valid JSON at byte 1"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"},
      {edited("\"vocab_size\"", "\n<<<<<<< HEAD\n\"vocab_size\""), "not valid JSON at byte"},
      {"// mine\n" + good, "not valid JSON at byte 1"},
      {good.substr(0, good.size() - 1) + ",}", "not valid JSON at byte"},
      {edited("false", "False"), "not valid JSON at byte"},
      {edited("1e-05", "NaN"), "not valid JSON at byte"},
      {edited("1e-05", "1e999"), "a number that is too large"},
      {edited("silu", "si\xFFlu"), "not valid JSON at byte"},
      {std::string("\xFF\xFE{\0", 4), "not valid JSON at byte"},
      {good + good, "not valid JSON at byte"},
      {"[" + good + "]", "a JSON object was expected"},
      {"\"a text\"", "a JSON object was expected"},
      {"null", "a JSON object was expected"},
      {"{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", "deeper than 64 levels"},
  };
  const testing_support::TemporaryFolder folder;
  const auto file = folder / "config.json";
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    write_file_atomic(file, text);
    testing_support::expect_refused([&] { read_model_config(folder.path()); }, file.string(), {message});
  }
}

TEST(ModelConfig, RefusesWhatIsNoFileOrTooLarge) {
  const testing_support::TemporaryFolder folder;
  const auto file = folder / "config.json";
  const auto expect = [&](const char* message) {
    testing_support::expect_refused([&] { read_model_config(folder.path()); }, file.string(), {message});
    std::filesystem::remove(file);
  };
  expect("no such file");
  std::filesystem::create_directory(file);
  expect("is a folder");
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  ::alarm(20);  // opening the pipe would never end
  expect("is a pipe");
  ::alarm(0);
  write_file_atomic(file, "{");
  std::filesystem::resize_file(file, std::uintmax_t{1} << 40);
  expect("has 1099511627776 bytes; at most 100000000 were expected");
}

TEST(ModelConfig, ReadsWhatIsOddButJson) {
  EXPECT_EQ(parse_model_config("\xEF\xBB\xBF" + config_text(), "c").vocab_size, 32);
  EXPECT_EQ(parse_model_config("{\"vocab_size\": 33, " + config_text().substr(1), "c").vocab_size, 32);  // as in Python
  EXPECT_NO_THROW(config_with(R"({"auto_map": {"AutoConfig": "evil.py"}, "my_key": [{}], "quantization_config": {},
                                  "sliding_window": "whatever", "use_sliding_window": false})"));
  EXPECT_EQ(config_with(R"({"bos_token_id": -1})").bos_token_id, std::nullopt);
  const testing_support::TemporaryFolder folder;
  write_file_atomic(folder / "config.json", config_text());
  EXPECT_EQ(read_model_config(folder.path()).hidden_size, 16);
  EXPECT_EQ(read_model_config(folder.path()).path, folder / "config.json");
}

/// head_dim 16, 4096 positions.
ModelConfig rope_config(const std::string& changes) {
  auto all = nlohmann::json::parse(R"({"head_dim": 16, "max_position_embeddings": 4096})");
  all.update(nlohmann::json::parse(changes));
  return family_config("llama", all.dump());
}

struct Frequencies {
  const char* changes;
  double attention_factor;
  std::vector<float> expected;
};

/// LlamaRotaryEmbedding(config).inv_freq of transformers 5.17, as hexadecimal floats.
TEST(Rope, FrequenciesAreThoseOfTransformers) {
  const std::vector<float> plain = {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.99999ap-4F,  0x1.030dc6p-5F,
                                    0x1.47ae14p-7F, 0x1.9e7c70p-9F, 0x1.0624dep-10F, 0x1.4b96c0p-12F};
  const Frequencies cases[] = {
      {R"({"max_position_embeddings": 128})", 1, plain},
      {R"({"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 2.1}})", 1, plain},
      {R"({"max_position_embeddings": 128, "rope_scaling": {"rope_type": "linear", "factor": 2.5}})",
       1,
       {0x1.99999ap-2F, 0x1.030dc4p-3F, 0x1.47ae14p-5F, 0x1.9e7c70p-7F, 0x1.0624dcp-8F, 0x1.4b96c0p-10F,
        0x1.a36e30p-12F, 0x1.094566p-13F}},
      {R"({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}})",
       1,
       {0x1.000000p+0F, 0x1.8d2760p-3F, 0x1.341190p-5F, 0x1.58150cp-10F, 0x1.72ba42p-13F, 0x1.1f91f0p-15F,
        0x1.be2188p-18F, 0x1.5a0f4ep-20F}},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}})",
       1.138629436111989,
       {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.4ccccep-4F, 0x1.43d138p-6F, 0x1.1eb852p-8F, 0x1.9e7c70p-11F,
        0x1.0624dep-12F, 0x1.4b96c0p-14F}},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
           "truncate": false, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5}})",
       1.0648216253695715,
       {0x1.000000p+0F, 0x1.43d136p-2F, 0x1.99999ap-4F, 0x1.32690ep-6F, 0x1.47ae14p-9F, 0x1.9e7c70p-11F,
        0x1.0624dep-12F, 0x1.4b96c0p-14F}},
      {R"({"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 2, 3],
           "long_factor": [4, 4, 4, 4, 4, 4, 4, 4], "original_max_position_embeddings": 1024}})",
       1.0954451150103321,
       {0x1.000000p+0F, 0x1.266118p-2F, 0x1.555556p-4F, 0x1.8e8b58p-6F, 0x1.d41d42p-8F, 0x1.1452f6p-9F, 0x1.0624dep-11F,
        0x1.ba1e54p-14F}}};
  for (const auto& [changes, attention_factor, expected] : cases) {
    SCOPED_TRACE(changes);
    const ModelConfig config = rope_config(changes);
    EXPECT_DOUBLE_EQ(rope_attention_factor(config), attention_factor);
    const auto got = rope_inv_freq(config);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], expected[i] * 1.2e-7) << i;  // one unit in the last place of powf
    }
  }
}

TEST(Rope, YarnExtendsTheContext) {
  const auto context = [](const std::string& scaling) {
    return rope_config(R"({"rope_scaling": {"rope_type": )" + scaling + "}}").context_length();
  };
  EXPECT_EQ(rope_config("{}").context_length(), 4096);
  EXPECT_EQ(context(R"("linear", "factor": 4.0)"), 4096);
  EXPECT_EQ(context(R"("yarn", "factor": 4.0)"), 16384);
  EXPECT_EQ(context(R"("yarn", "factor": 4.0, "original_max_position_embeddings": 2048)"), 8192);
  EXPECT_EQ(context(R"("yarn", "factor": 2.0, "original_max_position_embeddings": 1024)"), 4096);
  EXPECT_GT(context(R"("yarn", "factor": 1e300)"), 4096);
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
  const auto original = [](const std::string& more) {
    return rope_config(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0)" + more + "}")
        .rope.original_max_position_embeddings;
  };
  EXPECT_EQ(original("}"), 4096);
  EXPECT_EQ(original(R"(, "original_max_position_embeddings": 512})"), 512);
  EXPECT_EQ(original(R"(, "original_max_position_embeddings": 512}, "original_max_position_embeddings": 256)"), 256);
}

TEST(Rope, RefusesUnknownKindsAndMissingOrImpossibleKeys) {
  using Rows = std::vector<std::pair<std::string, std::string>>;
  Rows rows = {{R"("rope_scaling": {"rope_type": "su"})", "rope_scaling.rope_type: \"su\" is not supported"},
               {R"("rope_scaling": {"rope_type": 1})", "string"},
               {R"("rope_scaling": "linear")", "object"},
               {R"("rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]})", "3 sections of 4 pairs in total"},
               {R"("rope_scaling": {"type": "mrope", "mrope_section": [4, 4]})", "2 sections of 8 pairs in total"},
               {R"("rope_scaling": {"rope_type": "default", "llama_4_scaling_beta": 0.1})", "ministral3 family only"},
               {R"("rope_scaling": {"factor": 4.0})", "factor: has no effect without rope_type"},
               {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor: rotating only part of each head"},
               {R"("rope_parameters": {"partial_rotary_factor": 0.5})",
                "rope_parameters.partial_rotary_factor: rotating only part of each head"},
               {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})", "per layer type"}};
  for (const auto& [keys, part] :
       Rows{{R"("linear")", "factor: the key is missing"},
            {R"("dynamic")", "factor: the key is missing"},
            {R"("yarn")", "factor: the key is missing"},
            {R"("llama3")", "factor: the key is missing"},
            {R"("linear", "factor": 0)", "above zero"},
            {R"("linear", "factor": "2")", "a number"},
            {R"("yarn", "factor": -4)", "factor: is -4; a number above zero"},
            {R"("longrope", "short_factor": "1", "long_factor": [1])", "short_factor: is \"1\"; a list of numbers"},
            {R"("llama3", "factor": 2)", "low_freq_factor: the key is missing"},
            {R"("llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4)", "larger than"},
            {R"("longrope", "long_factor": [1])", "short_factor: the key is missing"},
            {R"("longrope", "short_factor": [1], "long_factor": [1])", "1 numbers; 8 were expected"}}) {
    rows.emplace_back(R"("rope_scaling": {"rope_type": )" + keys + "}", part);
  }
  for (const auto& [changes, part] : rows) {
    EXPECT_SAYS(testing_support::refusal<FormatError>([&] { rope_config("{" + changes + "}"); }), part) << changes;
  }
  EXPECT_NO_THROW(rope_config(R"({"partial_rotary_factor": 1.0})"));
}

TEST(Rope, SectionsOverWholeHeadsArePlainForText) {
  const auto config = rope_config(R"({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}})");
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(rope_inv_freq(config), rope_inv_freq(rope_config("{}")));
}

TEST(Rope, GemmaRotatesWholeHeadsInLayersOfBothKinds) {
  for (const char* key :
       {R"("partial_rotary_factor": 0.5)", R"("rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}})",
        R"("rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}})"}) {
    const std::string text =
        R"({"model_type": "gemma3_text", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, )";
    EXPECT_SAYS(testing_support::refusal<FormatError>([&] { parse_model_config(text + key + "}", "config.json"); }),
                "partial_rotary_factor: rotating only part of each head");
  }
}

/// The RoPE keys of a family whose heads of 32 rotate a quarter, unless a file says otherwise.
ModelConfig quarter_config(const std::string& keys) {
  const FamilyRules rules = {.family = Family::kLlama,
                             .model_type = "quarter",
                             .partial_rotary_factor = 0.25,
                             .max_position_embeddings = 4096,
                             .read_own_keys = nullptr};
  const ConfigReader reader(nlohmann::json::parse("{" + keys + "}"), "config.json");
  ModelConfig config;
  config.head_dim = 32;
  config.max_position_embeddings = 4096;
  read_rotary_dim(reader, rules, config);
  read_rope(reader, config);
  return config;
}

TEST(Rope, RotatesThePartOfAHeadThatFamilyOrFileNames) {
  EXPECT_EQ(rope_config("{}").rotary_dim, 16);
  const std::pair<const char*, std::int64_t> cases[] = {
      {"", 8},
      {R"("partial_rotary_factor": 0.5)", 16},
      {R"("partial_rotary_factor": 1.0)", 32},
      {R"("partial_rotary_factor": 0.2)", 6},  // of 6.4
      {R"("rope_parameters": {"partial_rotary_factor": 0.5})", 16},
      {R"("rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5})", 16},
      {R"("partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5})", 16},
      {R"("partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0})", 32},
      {R"("partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default"})", 16}};
  for (const auto& [keys, expected] : cases) EXPECT_EQ(quarter_config(keys).rotary_dim, expected) << keys;
  for (const auto& [value, part] :
       {std::pair("1.5", "is 1.5; a share"), std::pair("0.1", "0.1 of head_dim (32) is 3; RoPE rotates pairs"),
        std::pair("0.02", "is 0; RoPE rotates pairs"), std::pair("0", "above zero"),
        std::pair("null", "a number was expected")}) {
    const std::string keys = std::string(R"("partial_rotary_factor": )") + value;
    EXPECT_SAYS(testing_support::refusal<FormatError>([&] { quarter_config(keys); }), part) << value;
  }
}

TEST(Rope, PartOfAHeadTurnsLikeAHeadOfThatSize) {
  const std::string kinds[] = {
      R"("default", "mrope_section": [2, 1, 1])",
      R"("linear", "factor": 2)",
      R"("dynamic", "factor": 2)",
      R"("yarn", "factor": 4, "original_max_position_embeddings": 1024)",
      R"("llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64)",
      R"("longrope", "short_factor": [1, 2, 3, 4], "long_factor": [4, 4, 4, 4])"};
  for (const std::string& kind : kinds) {
    const std::string keys = R"("rope_parameters": {"rope_theta": 1e4, "rope_type": )" + kind + "}";
    const std::vector<float> got = rope_inv_freq(quarter_config(keys));
    EXPECT_EQ(got.size(), 4u) << kind;
    EXPECT_EQ(got, rope_inv_freq(rope_config(R"({"head_dim": 8, )" + keys + "}"))) << kind;
  }
  for (const auto& [keys, part] :
       {std::pair(R"("rope_type": "default", "mrope_section": [4, 6, 6])", "three of 4 pairs in total"),
        std::pair(R"("rope_type": "dynamic", "factor": 2, "partial_rotary_factor": 0.0625)", "more than one pair")}) {
    const std::string text = std::string(R"("rope_parameters": {)") + keys + "}";
    EXPECT_SAYS(testing_support::refusal<FormatError>([&] { quarter_config(text); }), part);
  }
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
