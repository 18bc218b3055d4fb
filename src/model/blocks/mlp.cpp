// Dense gated MLP: norm, gate|up, activation, down projection.
// N tokens, D hidden, F ffn.

#include "block.h"
#include "block_shapes.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"

namespace lora_train::model::mlp {
namespace {

/// gate|up without the room for adapter columns of its gradient.
at::Tensor outputs(const Projection& gate_up, const BlockActivations& saved) {
  return saved.saved[kGateUpOut].narrow(1, 0, gate_up.out_features);
}

/// One half of them: 0 is the gate, 1 is up.
at::Tensor half_of_outputs(const Projection& gate_up, const BlockActivations& saved, int64_t half) {
  const int64_t F = gate_up.out_features / 2;
  return saved.saved[kGateUpOut].narrow(1, half * F, F);
}

void norm(const BlockForward& block) {
  auto& saved = block.saved.saved;
  norm_and_columns(block, block.weights.small[kInputNorm], block.weights.projections[kGateUp], saved[kNormed],
                   saved[kRstd]);
}

void gate_up(const BlockForward& block) {
  const Projection& projection = block.weights.projections[kGateUp];
  at::Tensor y = outputs(projection, block.saved);
  projection_forward(projection, block.saved.saved[kNormed], {}, y, block.pass.linear);
}

void activate(const BlockForward& block) {
  auto& saved = block.saved.saved;
  const Projection& down = block.weights.projections[kDown];
  at::Tensor activated = features(down, saved[kActivated]);
  const Projection& gate_up = block.weights.projections[kGateUp];
  kernels::gated_activation_forward(half_of_outputs(gate_up, block.saved, 0), half_of_outputs(gate_up, block.saved, 1),
                                    activated, block.pass.config.activation);
  fill_adapter_columns(down, saved[kActivated], block.pass.linear);
}

void fill_saved(const BlockForward& block) {
  norm(block);
  gate_up(block);
  activate(block);
}

void recompute(const BlockForward& block, Recompute mode) {
  norm(block);
  if (mode == Recompute::kGateUp) gate_up(block);
  activate(block);
}

void backward(const BackwardPass& pass, int64_t, BlockWeights& weights, BlockActivations& activations,
              const at::Tensor& d_activated, at::Tensor& d_hidden, bool) {
  auto& saved = activations.saved;
  Projection& gate_up = weights.projections[kGateUp];
  at::Tensor gate = half_of_outputs(gate_up, activations, 0), up = half_of_outputs(gate_up, activations, 1);
  kernels::gated_activation_backward(features(weights.projections[kDown], d_activated), gate, up, gate, up,
                                     pass.forward.config.activation);
  input_backward(pass, weights.small[kInputNorm], gate_up, saved[kNormed], saved[kGateUpOut], activations.input,
                 saved[kRstd], d_hidden, /*need_input_grad=*/true);
}

}  // namespace

const BlockCode code = {kActivated, fill_saved, recompute, backward};

}  // namespace lora_train::model::mlp
