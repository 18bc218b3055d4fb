// The structure of a model as plain data, and the buffers that are planned from it.
#include "lora_train/model/layer_shape.h"

#include <gtest/gtest.h>

#include <set>

#include "lora_train/base/error.h"
#include "lora_train/model/activation_plan.h"
#include "lora_train/model/families/model_config.h"
#include "support/expect_refused.h"

namespace lora_train::model {
namespace {

/// A Gemma 3 with these keys more.
ModelConfig gemma(const std::string& more) {
  return parse_model_config(
      R"({"model_type": "gemma3_text", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32, "sliding_window": 5, )" +
          more + "}",
      "config.json");
}

AdapterSpec adapter(const std::string& linear, std::int64_t rank, std::int64_t layer = 0) {
  return {AdapterKind::kLora, layer, linear, rank, 1.0, 0.0};
}

/// Of the weights of layer 0, one after the other.
std::string names_of_layer_0(const ModelConfig& config) {
  std::string names;
  for (const auto& spec : expected_tensors(config)) {
    if (!spec.name.starts_with(layer_prefix(0))) continue;
    const std::string name = spec.name.substr(layer_prefix(0).size());
    names += name.substr(0, name.rfind(".weight")) + " ";
  }
  return names;
}

TEST(LayerShape, ColumnsOfAdaptersLieSideBySideAndComeInWholeSteps) {
  const ModelConfig config = known_shape("tiny-qwen2");
  const ModelShape shape = model_shape(config, {adapter("self_attn.q_proj", 2), adapter("self_attn.v_proj", 3)});
  const ProjectionShape& qkv = shape.layers[0].blocks[0].projections[0];
  EXPECT_EQ(qkv.num_columns, kColumnStep);
  ASSERT_EQ(qkv.adapters.size(), 2U);
  EXPECT_EQ(qkv.adapters[0].column, 0);
  EXPECT_EQ(qkv.adapters[1].column, 2);
  EXPECT_EQ(qkv.adapters[1].linear, 2);
  EXPECT_EQ(saved_buffer(shape.layers[0], "attention.normed").width, config.hidden_size + kColumnStep);
  EXPECT_EQ(saved_buffer(shape.layers[1], "attention.normed").width, config.hidden_size);
  const ModelShape wide = model_shape(config, {adapter("self_attn.q_proj", 7), adapter("self_attn.v_proj", 2)});
  EXPECT_EQ(wide.layers[0].blocks[0].projections[0].num_columns, 2 * kColumnStep);
}

TEST(LayerShape, GateUpHasRoomForTheColumnsOfItsGradientBesideTheOutput) {
  const ModelConfig config = known_shape("tiny-qwen2");
  const std::vector<AdapterSpec> specs = {adapter("mlp.gate_proj", 2), adapter("mlp.up_proj", 9)};
  const std::int64_t O = 2 * config.intermediate_size, C = 2 * kColumnStep;
  const auto width = [&](const ModelShape& shape) { return saved_buffer(shape.layers[0], "mlp.gate_up").width; };
  EXPECT_EQ(width(model_shape(config, specs)), O);
  const ModelShape beside_output = model_shape(config, specs, {.gate_up = GradientColumns::kBesideOutput});
  EXPECT_EQ(width(beside_output), O + C);
  const ProjectionShape& gate_up = beside_output.layers[0].blocks[1].projections[0];
  EXPECT_EQ(gate_up.d_input_width(), config.hidden_size);
  EXPECT_EQ(gate_up.d_output_width(), O + C);
  EXPECT_EQ(width(model_shape(config, {}, {.gate_up = GradientColumns::kBesideOutput})), O);
}

TEST(LayerShape, AnAdapterOnALinearThatIsNotThereIsRefused) {
  EXPECT_THROW(model_shape(known_shape("tiny-qwen2"), {adapter("self_attn.qkv_proj", 2)}), ShapeError);
}

TEST(RowPitch, PaddedRowsBeginAtWholeStepsAndRowsWithoutColumnsArePacked) {
  const ModelConfig config = known_shape("qwen2.5-7b");
  std::vector<AdapterSpec> adapters;
  for (const auto& linear : linear_names(config, 0)) {
    if (linear != "self_attn.o_proj") adapters.push_back(adapter(linear, 16));
  }
  const ModelShape exact = model_shape(config, adapters),
                   padded = model_shape(config, adapters, {.row_pitch = RowPitch::kPadded});
  for (const BlockShape& block : exact.layers[0].blocks) {
    for (const ProjectionShape& p : block.projections) {
      EXPECT_EQ(std::tuple(p.input_pitch(), p.d_input_pitch(), p.d_output_pitch()),
                std::tuple(p.input_width(), p.d_input_width(), p.d_output_width()));
    }
  }
  const auto& attention = padded.layers[0].blocks[0].projections;
  const auto& mlp = padded.layers[0].blocks[1].projections;
  EXPECT_EQ(attention[0].input_width(), 3584 + 48);  // K of the GEMM
  EXPECT_EQ(attention[0].input_pitch(), 3648);
  EXPECT_EQ(attention[0].d_output_pitch(), 4672);  // 4608 + 48
  EXPECT_EQ(attention[1].input_pitch(), 3584) << "o has no adapter";
  EXPECT_EQ(attention[1].d_output_pitch(), 3584);
  EXPECT_EQ(mlp[0].input_pitch(), 3648);   // 3584 + 32
  EXPECT_EQ(mlp[1].input_pitch(), 19008);  // 18944 + 16
  EXPECT_EQ(saved_buffer(padded.layers[0], "mlp.hidden").row_elements(), 19008);
  EXPECT_EQ(saved_buffer(exact.layers[0], "mlp.hidden").row_elements(), 18960);
}

TEST(LayerShape, TensorsStandInTheOrderOfTheForwardPass) {
  const std::string
      attention =
          "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.q_norm self_attn.k_norm self_attn.o_proj ",
      mlp = "mlp.gate_proj mlp.up_proj mlp.down_proj ";
  EXPECT_EQ(names_of_layer_0(known_shape("tiny-qwen3")),
            "input_layernorm " + attention + "post_attention_layernorm " + mlp);
  EXPECT_EQ(names_of_layer_0(gemma(R"("num_hidden_layers": 6)")),
            "input_layernorm " + attention + "post_attention_layernorm pre_feedforward_layernorm " + mlp +
                "post_feedforward_layernorm ");
}

TEST(Gemma3Config, ReadsBothSpellingsOfItsRopeAndWindows) {
  const ModelConfig published = gemma(
      R"("num_hidden_layers": 4, "sliding_window_pattern": 2, "rope_theta": 500000, "rope_local_base_freq": 70,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0})");
  const ModelConfig now = gemma(
      R"("num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
         "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 70}})");
  for (const ModelConfig& config : {published, now}) {
    EXPECT_EQ(config.layer_window, (std::vector<std::int64_t>{5, 0, 5, 0}));
    EXPECT_EQ(config.rope.type, RopeType::kLinear);
    EXPECT_EQ(config.rope.theta, 500000);
    ASSERT_TRUE(config.local_rope.has_value());
    EXPECT_EQ(config.local_rope->type, RopeType::kDefault);
    EXPECT_EQ(config.local_rope->theta, 70);
  }
  const ModelConfig defaults = gemma(R"("num_hidden_layers": 6)");
  EXPECT_EQ(defaults.rope.theta, 1e6);
  EXPECT_EQ(defaults.local_rope->theta, 1e4);
  EXPECT_EQ(defaults.layer_window, (std::vector<std::int64_t>{5, 5, 5, 5, 5, 0}));
  EXPECT_TRUE(defaults.tie_word_embeddings);
}

TEST(Gemma3Config, WhatIsNotComputedIsRefusedByName) {
  for (const std::string key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    testing_support::expect_refused([&] { gemma(R"("num_hidden_layers": 6, ")" + key + "\": 30.0"); }, key, {});
  }
}

/// Buffers that two layers have in common.
std::set<std::string> shared_by(const ActivationPlan& plan, std::size_t a, std::size_t b) {
  std::set<std::string> names;
  for (std::size_t block = 0; block < plan.layers[a].size(); ++block) {
    for (std::size_t i = 0; i < plan.layers[a][block].saved.size(); ++i) {
      const std::int64_t index = plan.layers[a][block].saved[i];
      const bool is_common = index != ActivationPlan::kNone && index == plan.layers[b][block].saved[i];
      if (is_common) names.insert(plan.buffers[static_cast<std::size_t>(index)].name);
    }
  }
  return names;
}

TEST(ActivationPlan, LayersShareWhatTheirRecomputationDoesNotKeep) {
  const ModelShape shape = model_shape(known_shape("tiny-qwen3"));
  const auto shared = [&](Recompute mode) {
    return shared_by(plan_activations(shape, {.max_tokens = 8}, {mode, mode}), 0, 1);
  };
  EXPECT_TRUE(shared(Recompute::kOff).empty());
  EXPECT_EQ(shared(Recompute::kCheap), (std::set<std::string>{"attention.normed", "mlp.normed", "mlp.hidden"}));
  EXPECT_EQ(shared(Recompute::kGateUp).count("mlp.gate_up"), 1U);
  EXPECT_EQ(shared(Recompute::kFull).count("attention.qkv"), 1U);
  const ActivationPlan mixed = plan_activations(shape, {.max_tokens = 8}, {Recompute::kOff, Recompute::kFull});
  EXPECT_TRUE(shared_by(mixed, 0, 1).empty()) << "a layer that keeps everything shares nothing";
}

TEST(ActivationPlan, ScratchIsPlannedIfAnAdapterNeedsIt) {
  const ModelConfig config = known_shape("tiny-qwen3");
  const auto scratch = [&](double dropout) {
    AdapterSpec spec = adapter("self_attn.q_proj", 2);
    spec.dropout = dropout;
    const ActivationPlan plan =
        plan_activations(model_shape(config, {spec}), {.max_tokens = 8}, {Recompute::kOff, Recompute::kOff});
    return plan.scratch == ActivationPlan::kNone ? 0 : plan.buffers[static_cast<std::size_t>(plan.scratch)].width;
  };
  EXPECT_EQ(scratch(0), 0);
  EXPECT_GE(scratch(0.1), config.hidden_size);
}

TEST(ActivationPlan, AForwardAloneNeedsOneLayerAndTwoInputs) {
  const ModelShape shape = model_shape(known_shape("qwen3-0.6b"));
  const ActivationPlan plan = plan_activations(shape, {.max_tokens = 8, .needs_backward = false}, {});
  EXPECT_EQ(plan.layers[0][0].input, plan.layers[2][0].input);
  EXPECT_NE(plan.layers[0][0].input, plan.layers[1][0].input);
  EXPECT_EQ(plan.layers[0][1].saved, plan.layers[27][1].saved);
  EXPECT_EQ(plan.d_hidden, ActivationPlan::kNone);
}

}  // namespace
}  // namespace lora_train::model
