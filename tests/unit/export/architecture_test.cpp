#include "architecture.h"

#include <gtest/gtest.h>

#include <set>

#include "lora_train/base/error.h"

namespace lora_train::gguf {
namespace {

model::ModelConfig config_of(const std::string& type, const std::string& more = "") {
  return model::parse_model_config(R"({"model_type": ")" + type + R"(", "hidden_size": 16, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 32,
      "max_position_embeddings": 64)" + more +
                                       "}",
                                   "config.json");
}

using Order = std::vector<std::int64_t>;

TEST(Architecture, EveryTensorOfEveryFamilyHasANameOfItsOwn) {
  for (const char* type : {"qwen2", "qwen3", "mistral", "ministral3", "llama", "gemma3_text", "granite"}) {
    const model::ModelConfig config = config_of(type);
    std::set<std::string> names;
    for (const auto& tensor : model::expected_tensors(config)) names.insert(gguf_name(config, tensor.name));
    EXPECT_EQ(names.size(), model::expected_tensors(config).size()) << type;
    EXPECT_TRUE(names.contains("blk.1.ffn_norm.weight")) << type;
  }
}

model::ModelConfig wrapper_config(const std::string& type, const std::string& text) {
  return model::parse_model_config(R"({"model_type": ")" + type + R"(", "text_config": {"hidden_size": 16,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
      "intermediate_size": 24, "vocab_size": 32, "max_position_embeddings": 64)" +
                                       text + "}}",
                                   "config.json");
}

/// The value of the only key with this end, as text.
std::string value_of(const model::ModelConfig& config, const std::string& end) {
  for (const auto& [key, value] : architecture_metadata(config)) {
    if (!key.ends_with(end)) continue;
    if (const auto* number = std::get_if<float>(&value)) return fmt::format("{}={:g}", key, *number);
    if (const auto* number = std::get_if<std::uint32_t>(&value)) return fmt::format("{}={}", key, *number);
    std::string text = key + "=";
    for (const std::int32_t section : std::get<std::vector<std::int32_t>>(value)) text += fmt::format("{} ", section);
    return text;
  }
  return "none";
}

TEST(Architecture, TextInsideAWrapperHasTheArchitectureOfTheWrapper) {
  const std::string sections = R"(, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 1]})";
  for (const auto& [type, expected] :
       {std::pair("qwen2_vl", "qwen2vl"), {"qwen2_5_vl", "qwen2vl"}, {"qwen3_vl", "qwen3vl"}}) {
    const model::ModelConfig config = wrapper_config(type, sections);
    EXPECT_EQ(value_of(config, "dimension_sections"), std::string(expected) + ".rope.dimension_sections=1 2 1 0 ");
    EXPECT_THROW(check_architecture(wrapper_config(type, "")), FormatError) << type;
  }
  EXPECT_EQ(architecture_name(wrapper_config("mistral3", "")), "mistral3");
  EXPECT_EQ(architecture_name(wrapper_config("voxtral", "")), "llama");
  EXPECT_EQ(architecture_name(wrapper_config("gemma3", "")), "gemma3");
}

TEST(Architecture, Ministral3HasYarnWithAMultiplierAndAScaleOfTheQueries) {
  const model::ModelConfig config = config_of("ministral3");
  EXPECT_NO_THROW(check_architecture(config));
  EXPECT_EQ(value_of(config, "temperature_scale"), "mistral3.attention.temperature_scale=0.1");
  EXPECT_EQ(value_of(config, "yarn_log_multiplier"), "mistral3.rope.scaling.yarn_log_multiplier=1");
  EXPECT_EQ(row_order(config, "model.layers.0.self_attn.k_proj.weight", 4), (Order{0, 2, 1, 3}));
  const std::string plain = R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
      "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1})";
  EXPECT_THROW(check_architecture(config_of("ministral3", plain)), FormatError);
}

TEST(Architecture, RopeOfPartOfAHeadHasTheSizeOfThatPart) {
  model::ModelConfig config = config_of("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64})");
  config.rotary_dim = 4;
  EXPECT_EQ(value_of(config, "dimension_count"), "llama.rope.dimension_count=4");
  EXPECT_EQ(rope_factors(config).size(), 2U);
}

TEST(Architecture, ReordersHalvesOfAHeadToPairs) {
  const auto order = [](const char* type, const char* tensor, std::int64_t rows) {
    return row_order(config_of(type), std::string("model.layers.0.self_attn.") + tensor, rows);
  };
  EXPECT_EQ(order("llama", "q_proj.weight", 12), (Order{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(order("granite", "k_proj.bias", 6), (Order{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(order("llama", "v_proj.weight", 12), Order{});
  EXPECT_EQ(order("qwen3", "q_proj.weight", 12), Order{});
}

model::ModelConfig hybrid_config(const std::string& more = "") {
  return config_of("qwen3_5_text",
                   R"(, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 2,
      "linear_value_head_dim": 2, "full_attention_interval": 2)" +
                       more);
}

TEST(Architecture, ValueHeadsOfAGatedDeltaNetTakeTurns) {
  const auto order = [](const char* tensor, std::int64_t rows) {
    return row_order(hybrid_config(), std::string("model.layers.0.linear_attn.") + tensor, rows);
  };
  EXPECT_EQ(order("A_log", 4), (Order{0, 2, 1, 3}));
  EXPECT_EQ(order("in_proj_z.weight", 8), (Order{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(order("in_proj_qkv.weight", 16), (Order{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15}));
  EXPECT_EQ(order("out_proj.weight", 16), Order{});
  EXPECT_EQ(column_order(hybrid_config(), "model.layers.0.linear_attn.out_proj.weight"), order("in_proj_z.weight", 8));
}

TEST(Architecture, RefusesHybridModelsThatLlamaCppCannotSay) {
  EXPECT_NO_THROW(check_architecture(hybrid_config()));
  EXPECT_THROW(check_architecture(hybrid_config(R"(, "linear_value_head_dim": 4)")), FormatError);
  EXPECT_THROW(check_architecture(hybrid_config(R"(, "num_hidden_layers": 3, "layer_types":
      ["full_attention", "linear_attention", "full_attention"])")),
               FormatError);
}

TEST(Architecture, FactorsOfLlama3RopeGoFromOneToTheFactor) {
  const std::vector<float> factors = rope_factors(config_of("llama", R"(, "rope_theta": 10000, "rope_scaling": {
      "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 64})"));
  ASSERT_EQ(factors.size(), 4U);
  EXPECT_EQ(factors.front(), 1);
  EXPECT_EQ(factors.back(), 8);
  EXPECT_TRUE(rope_factors(config_of("llama")).empty());
}

TEST(Architecture, AContextIsNoLongerThanTheWindow) {
  const auto context = [](const model::ModelConfig& config) {
    for (const auto& [key, value] : architecture_metadata(config)) {
      if (key.ends_with(".context_length")) return std::get<std::uint32_t>(value);
    }
    return std::uint32_t{0};
  };
  EXPECT_EQ(context(config_of("mistral", R"(, "sliding_window": 20)")), 20U);
  EXPECT_EQ(context(config_of("mistral", R"(, "sliding_window": null)")), 64U);
  EXPECT_EQ(context(config_of("gemma3_text", R"(, "sliding_window": 20)")), 64U);
}

TEST(Architecture, RefusesWhatLlamaCppHasNoPlaceFor) {
  EXPECT_THROW(check_architecture(config_of("qwen3", R"(, "attention_bias": true)")), FormatError);
  EXPECT_THROW(check_architecture(config_of("qwen2", R"(, "head_dim": 16)")), FormatError);
  EXPECT_THROW(check_architecture(config_of("gemma3_text", R"(, "query_pre_attn_scalar": 20)")), FormatError);
  EXPECT_NO_THROW(check_architecture(config_of("llama", R"(, "attention_bias": true, "mlp_bias": true)")));
}

}  // namespace
}  // namespace lora_train::gguf
