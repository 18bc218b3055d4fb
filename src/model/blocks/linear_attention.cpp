// Linear attention, a gated delta net: norm, q|k|v|z|b|a, causal convolution over q|k|v, the gated delta rule, gated
// norm, output projection. N tokens, Hv value heads.
#include <numeric>

#include "block.h"
#include "block_shapes.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/causal_conv/causal_conv.h"
#include "lora_train/kernels/gated_delta/gated_delta.h"
#include "lora_train/kernels/gated_norm/gated_norm.h"

namespace lora_train::model::linear_attention {
namespace {

/// The columns of the first projection's output, or of its gradient.
struct ProjectedViews {
  at::Tensor qkv, z, b, a;
};

ProjectedViews split(const ModelConfig& c, const at::Tensor& projected) {
  const kernels::GatedDeltaSizes& sizes = c.gated_delta;
  const int64_t qkv = sizes.qkv_width(), values = sizes.value_width(), Hv = sizes.value_heads;
  return {projected.narrow(1, 0, qkv), projected.narrow(1, qkv, values), projected.narrow(1, qkv + values, Hv),
          projected.narrow(1, qkv + values + Hv, Hv)};
}

/// The columns of one of q, k, v, z, b and a, [N, key heads, width].
struct Part {
  at::Tensor in_order, grouped;
};

/// in_order: q|k|v|z|b|a. grouped: q|k|v|z of each key head in turn, then b|a of each.
std::vector<Part> parts_of(const ModelConfig& c, const at::Tensor& in_order, const at::Tensor& grouped) {
  const int64_t Hk = c.gated_delta.key_heads, values = c.gated_delta.value_heads / Hk;
  const int64_t keys = c.gated_delta.key_size, v = values * c.gated_delta.value_size;
  std::vector<Part> parts;
  int64_t column = 0;
  for (const std::vector<int64_t>& widths : {std::vector<int64_t>{keys, keys, v, v}, {values, values}}) {
    const int64_t all = std::accumulate(widths.begin(), widths.end(), int64_t{0});
    const at::Tensor groups = grouped.narrow(1, column, Hk * all).unflatten(1, {Hk, all});
    int64_t within = 0;
    for (const int64_t width : widths) {
      parts.push_back(
          {in_order.narrow(1, column, Hk * width).unflatten(1, {Hk, width}), groups.narrow(2, within, width)});
      column += Hk * width;
      within += width;
    }
  }
  return parts;
}

/// [channels, taps]
at::Tensor convolution(const BlockWeights& weights) { return weights.small[kConvolution].weight.select(1, 0); }

kernels::GatedDeltaInputs rule_inputs(const ModelConfig& c, const BlockWeights& weights,
                                      const BlockActivations& activations) {
  const ProjectedViews projected = split(c, activations.saved[kProjected]);
  return {activations.saved[kConvolved], projected.a, projected.b, weights.small[kDecayRate].weight,
          weights.small[kStepBias].weight};
}

void normalise_output(const BlockForward& block) {
  const auto& [pass, layer, weights, activations] = block;
  auto& saved = activations.saved;
  const Projection& out = weights.projections[kOut];
  at::Tensor gated = features(out, saved[kGated]);
  kernels::gated_norm_forward(saved[kUngated], split(pass.config, saved[kProjected]).z,
                              weights.small[kGatedNorm].weight, pass.config.rms_norm_eps, gated);
  fill_adapter_columns(out, saved[kGated], pass.linear);
}

void fill_saved(const BlockForward& block) {
  const auto& [pass, layer, weights, activations] = block;
  auto& saved = activations.saved;
  const bool by_key_head = pass.config.projects_by_key_head;
  norm_and_columns(block, weights.small[kInputNorm], weights.projections[kIn], saved[kNormed], saved[kRstd]);
  projection_forward(weights.projections[kIn], saved[kNormed], {}, saved[by_key_head ? kByKeyHead : kProjected],
                     pass.linear);
  if (by_key_head) {
    for (const auto& [in_order, grouped] : parts_of(pass.config, saved[kProjected], saved[kByKeyHead])) {
      copy_columns("put_in_order", grouped, in_order);
    }
  }
  const kernels::Sequences& sequences = pass.attention.sequences();
  RecurrentStates states = pass.attention.states(layer);
  kernels::causal_conv_forward(split(pass.config, saved[kProjected]).qkv, convolution(weights), sequences,
                               states.convolution, saved[kConvolved]);
  kernels::gated_delta_forward(pass.config.gated_delta, rule_inputs(pass.config, weights, activations), sequences,
                               states.rule, saved[kScratch], saved[kUngated]);
  normalise_output(block);
}

void recompute(const BlockForward& block, Recompute) {
  auto& saved = block.saved.saved;
  norm_and_columns(block, block.weights.small[kInputNorm], block.weights.projections[kIn], saved[kNormed],
                   saved[kRstd]);
  normalise_output(block);
}

/// The gradients of q|k|v|z|b|a. d_gated becomes the gradient of the rule's output.
void projected_gradients(const BackwardPass& pass, BlockWeights& weights, BlockActivations& activations,
                         at::Tensor d_gated, const at::Tensor& d_projected) {
  const ModelConfig& c = pass.forward.config;
  auto& saved = activations.saved;
  const kernels::Sequences& sequences = pass.attention.sequences();
  const ProjectedViews projected = split(c, saved[kProjected]);
  ProjectedViews to = split(c, d_projected);
  kernels::gated_norm_backward(d_gated, saved[kUngated], projected.z, weights.small[kGatedNorm].weight, c.rms_norm_eps,
                               d_gated, to.z, weights.small[kGatedNorm].grad);
  at::Tensor no_state;  // a convolution is cheap: layers share its output
  kernels::causal_conv_forward(projected.qkv, convolution(weights), sequences, no_state, saved[kConvolved]);
  at::Tensor d_convolved = pass.buffers.gradient("d_convolved", d_gated.size(0));
  kernels::GatedDeltaGradients gradients{d_convolved, to.a, to.b, weights.small[kDecayRate].grad,
                                         weights.small[kStepBias].grad};
  kernels::gated_delta_backward(c.gated_delta, rule_inputs(c, weights, activations), sequences, d_gated,
                                saved[kScratch], gradients);
  at::Tensor d_convolution = weights.small[kConvolution].grad;
  if (d_convolution.defined()) d_convolution = d_convolution.select(1, 0);
  kernels::causal_conv_backward(d_convolved, projected.qkv, convolution(weights), sequences, to.qkv, d_convolution);
}

void backward(const BackwardPass& pass, int64_t, BlockWeights& weights, BlockActivations& activations,
              const at::Tensor& d_gated, at::Tensor& d_hidden, bool need_input_grad) {
  auto& saved = activations.saved;
  Projection& in = weights.projections[kIn];
  at::Tensor d_wide = pass.buffers.gradient_of("d_projected", in, d_hidden.size(0));
  const at::Tensor d_linears = d_wide.narrow(1, 0, in.out_features);
  const ModelConfig& c = pass.forward.config;
  const at::Tensor d_projected =
      c.projects_by_key_head ? pass.buffers.gradient("d_in_order", d_hidden.size(0)) : d_linears;
  projected_gradients(pass, weights, activations, features(weights.projections[kOut], d_gated), d_projected);
  if (c.projects_by_key_head) {
    for (const auto& [in_order, grouped] : parts_of(c, d_projected, d_linears)) {
      copy_columns("group_by_key_head", in_order, grouped);
    }
  }
  input_backward(pass, weights.small[kInputNorm], in, saved[kNormed], d_wide, activations.input, saved[kRstd], d_hidden,
                 need_input_grad);
}

}  // namespace

const BlockCode code = {kGated, fill_saved, recompute, backward};

}  // namespace lora_train::model::linear_attention
