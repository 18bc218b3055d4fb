// Linear attention, a gated delta net: norm, q|k|v|z|b|a, causal convolution over q|k|v, the gated delta rule, gated
// norm, output projection. N tokens, Hv value heads.
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
  norm_and_columns(block, weights.small[kInputNorm], weights.projections[kIn], saved[kNormed], saved[kRstd]);
  projection_forward(weights.projections[kIn], saved[kNormed], {}, saved[kProjected], pass.linear);
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
  projected_gradients(pass, weights, activations, features(weights.projections[kOut], d_gated),
                      d_wide.narrow(1, 0, in.out_features));
  input_backward(pass, weights.small[kInputNorm], in, saved[kNormed], d_wide, activations.input, saved[kRstd], d_hidden,
                 need_input_grad);
}

}  // namespace

const BlockCode code = {kGated, fill_saved, recompute, backward};

}  // namespace lora_train::model::linear_attention
