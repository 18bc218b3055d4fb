// Qwen3.5: kinds of layers, sizes of gated delta nets, their weights and buffers. Numbers: tests/parity/test_wrappers.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/model/activation_plan.h"
#include "lora_train/model/layer_shape.h"
#include "support/expect_refused.h"

namespace lora_train::model {
namespace {

using nlohmann::json;

/// D 16, 4 layers, 2 key and 4 value heads of sizes 3 and 5.
ModelConfig hybrid(const std::string& changes = "{}") {
  json config =
      json::parse(R"({"model_type": "qwen3_5_text", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32, "linear_num_key_heads": 2,
      "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5})");
  config.merge_patch(json::parse(changes));
  return parse_model_config(config.dump(), "dir/config.json");
}

/// "LLLF": linear attention, full attention.
std::string kinds(const ModelConfig& config) {
  std::string text;
  for (std::int64_t i = 0; i < config.num_layers; ++i) text += config.kind_of(i) == LayerKind::kAttention ? 'F' : 'L';
  return text;
}

TEST(Hybrid, LayerTypesOrTheIntervalNameTheLayersWithAttention) {
  EXPECT_EQ(kinds(hybrid()), "LLLF");
  EXPECT_EQ(kinds(hybrid(R"({"full_attention_interval": 2})")), "LFLF");
  const char* const types = R"({"full_attention_interval": 2,
      "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]})";
  EXPECT_EQ(kinds(hybrid(types)), "FLLF");
  EXPECT_EQ(hybrid(types).num_layers_of(LayerKind::kGatedDelta), 2);
  EXPECT_FALSE(hybrid(R"({"full_attention_interval": 1})").is_hybrid());
}

TEST(Hybrid, HasTheDefaultsOfTransformers) {
  const ModelConfig config = parse_model_config(R"({"model_type": "qwen3_5_text"})", "config.json");
  EXPECT_EQ(config.gated_delta, (kernels::GatedDeltaSizes{16, 32, 128, 128}));
  EXPECT_EQ(config.convolution_taps, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.norm_weight_offset, 1);
  EXPECT_TRUE(config.has_attention_gate && config.qk_norm && !config.tie_word_embeddings);
}

TEST(Hybrid, RefusesWhatItDoesNotCompute) {
  const auto refused = [](const std::string& changes, const std::string& key, const std::string& expected) {
    SCOPED_TRACE(changes);
    testing_support::expect_refused([&] { hybrid(changes); }, "dir/config.json: " + key, {expected});
  };
  refused(R"({"attn_output_gate": false})", "attn_output_gate", "without an output gate");
  refused(R"({"output_gate_type": "sigmoid"})", "output_gate_type", "swish");
  refused(R"({"mamba_ssm_dtype": "bfloat16"})", "mamba_ssm_dtype", "float32");
  refused(R"({"linear_num_key_heads": 3})", "linear_num_key_heads", "does not divide");
  refused(R"({"linear_conv_kernel_dim": 9})", "linear_conv_kernel_dim", "8");
  refused(R"({"layer_types": ["full_attention"]})", "layer_types", "1 entries for 4 layers");
  refused(R"({"layer_types": ["mamba", "full_attention", "full_attention", "full_attention"]})", "layer_types",
          "mamba");
}

TEST(Hybrid, GatesFollowEachHeadOfQ) {
  const ModelShape shape = model_shape(hybrid());
  const BlockShape& delta = shape.layers[0].blocks[0];
  EXPECT_EQ(delta.kind, BlockKind::kGatedDelta);
  EXPECT_EQ(delta.projections[0].out_features, (2 * 2 * 3 + 4 * 5) + 4 * 5 + 4 + 4);
  const BlockShape& attention = shape.layers[3].blocks[0];
  EXPECT_EQ(attention.projections[0].linears[0].out_features, 2 * 2 * 8);
  EXPECT_EQ(attention.projections[0].linears[1].out_begin, 2 * 2 * 8);
  EXPECT_EQ(linear_names(hybrid(), 0),
            (std::vector<std::string>{"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b",
                                      "linear_attn.in_proj_a", "linear_attn.out_proj", "mlp.gate_proj", "mlp.up_proj",
                                      "mlp.down_proj"}));
}

TEST(Hybrid, LinearsOfQwen3NextHoldTheRowsOfAKeyHeadTogether) {
  const ModelConfig next = hybrid(R"({"model_type": "qwen3_next", "num_experts": 0})");
  const BlockShape block = model_shape(next).layers[0].blocks[0];
  EXPECT_EQ(linear_names(next, 0)[0], "linear_attn.in_proj_qkvz");
  EXPECT_EQ(linear_names(next, 0)[1], "linear_attn.in_proj_ba");
  EXPECT_EQ(block.projections[0].linears[1].out_begin, (2 * 2 * 3 + 4 * 5) + 4 * 5);
  EXPECT_EQ(block.projections[0].out_features, model_shape(hybrid()).layers[0].blocks[0].projections[0].out_features);
  testing_support::expect_refused([] { hybrid(R"({"model_type": "qwen3_next"})"); }, "dir/config.json: num_experts",
                                  {"mixture-of-experts"});
}

TEST(Hybrid, WeightsOfAGatedDeltaNet) {
  std::string list;
  for (const TensorSpec& spec : expected_tensors(hybrid())) {
    if (!spec.name.starts_with("model.layers.0.linear_attn.") || spec.kind == WeightKind::kLinear) continue;
    list += spec.name.substr(std::string("model.layers.0.linear_attn.").size()) + " " + json(spec.shape).dump();
    list += keeps_fp32(spec.kind) ? " fp32\n" : "\n";
  }
  EXPECT_EQ(list, "conv1d.weight [32,1,4]\nA_log [4] fp32\ndt_bias [4] fp32\nnorm.weight [5]\n");
}

TEST(Hybrid, LayersShareWhatTheBackwardComputesAgain) {
  const ModelConfig config = hybrid();
  const ActivationPlan plan =
      plan_activations(model_shape(config), {.max_tokens = 64}, std::vector<Recompute>(4, Recompute::kOff));
  const auto count = [&](const std::string& name) {
    return std::ranges::count(plan.buffers, name, &BufferShape::name);
  };
  EXPECT_EQ(count("linear_attention.projected"), 3);
  EXPECT_EQ(count("linear_attention.convolved"), 1);
  EXPECT_EQ(count("linear_attention.scratch"), 1);
  EXPECT_EQ(count("d_convolved"), 1);
}

}  // namespace
}  // namespace lora_train::model
