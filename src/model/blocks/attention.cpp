// Self-attention: norm, q|k|v, norm of q and k if the family has one, RoPE, attention, its gate if the family has one,
// output projection.
// N tokens, D hidden, H heads, K kv heads, E head size.

#include "block.h"
#include "block_shapes.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"
#include "lora_train/kernels/rope/rope.h"
#include "lora_train/model/batch.h"

namespace lora_train::model {
namespace attention {
namespace {

/// Columns [begin, begin + heads) of head size E as [N, heads, E].
at::Tensor heads_of(const at::Tensor& buffer, int64_t begin, int64_t heads, int64_t E) {
  return buffer.narrow(1, begin * E, heads * E).unflatten(1, {heads, E});
}

QkvViews split_qkv(const ModelConfig& c, const at::Tensor& qkv) {
  return {heads_of(qkv, 0, c.num_heads, c.head_dim), heads_of(qkv, c.num_heads, c.num_kv_heads, c.head_dim),
          heads_of(qkv, c.num_heads + c.num_kv_heads, c.num_kv_heads, c.head_dim)};
}

at::Tensor attended_heads(const ModelConfig& c, const at::Tensor& buffer) {
  return heads_of(buffer, 0, c.num_heads, c.head_dim);
}

/// The norm of every q and k head, with its saved tensors and gradients; empty if the family has none.
kernels::QkNorm qk_norm(const ModelConfig& c, const BlockWeights& weights, const BlockActivations& saved) {
  if (!c.qk_norm) return {};
  const SmallWeight &q = weights.small[kQNorm], &k = weights.small[kKNorm];
  return {q.weight, k.weight, c.rms_norm_eps,      saved.saved[kQkRaw], saved.saved[kQkRstd],
          q.grad,   k.grad,   c.norm_weight_offset};
}

/// The views of projected [N, (2H + 2K) E]: for each head of q its query and its gate, then k and v.
struct GatedViews {
  at::Tensor q, gate, kv;
};

GatedViews split_gated(const ModelConfig& c, const at::Tensor& projected) {
  const int64_t H = c.num_heads, E = c.head_dim;
  const at::Tensor pairs = projected.narrow(1, 0, 2 * H * E).unflatten(1, {H, 2 * E});
  return {pairs.narrow(2, 0, E), pairs.narrow(2, E, E), projected.narrow(1, 2 * H * E, 2 * c.num_kv_heads * E)};
}

/// q|gate|k|v -> q|k|v and the gate.
void take_gate_out(const ModelConfig& c, BlockActivations& activations) {
  auto& saved = activations.saved;
  const GatedViews from = split_gated(c, saved[kProjected]);
  const int64_t width = c.num_heads * c.head_dim;
  copy_columns("split_q", from.q, attended_heads(c, saved[kQkvOut]));
  copy_columns("split_kv", from.kv, saved[kQkvOut].narrow(1, width, from.kv.size(1)));
  copy_columns("split_gate", from.gate, attended_heads(c, saved[kGate]));
}

void apply_gate(const BlockForward& block) {
  auto& saved = block.saved.saved;
  const Projection& o = block.weights.projections[kO];
  if (block.pass.config.has_attention_gate) {
    at::Tensor gated = features(o, saved[kAttended]);
    kernels::gated_activation_forward(saved[kGate], saved[kUngated], gated, kernels::Activation::kSigmoid);
  }
  fill_adapter_columns(o, saved[kAttended], block.pass.linear);
}

kernels::QkRotation rotation(const ForwardPass& pass, int64_t layer) {
  const ModelConfig& c = pass.config;
  return {c.num_heads, c.num_kv_heads, c.head_dim, pass.positions, pass.rope.of(c, layer)};
}

void fill_saved(const BlockForward& block) {
  const auto& [pass, layer, weights, activations] = block;
  auto& saved = activations.saved;
  const bool has_gate = pass.config.has_attention_gate;
  norm_and_columns(block, weights.small[kInputNorm], weights.projections[kQkv], saved[kNormed], saved[kRstd]);
  projection_forward(weights.projections[kQkv], saved[kNormed], {}, saved[has_gate ? kProjected : kQkvOut],
                     pass.linear);
  if (has_gate) take_gate_out(pass.config, activations);
  kernels::QkNorm norm = qk_norm(pass.config, weights, activations);
  kernels::qk_norm_rope_forward(saved[kQkvOut], rotation(pass, layer), norm);
  at::Tensor attended = attended_heads(pass.config, saved[has_gate ? kUngated : kAttended]);
  pass.attention.forward(layer, split_qkv(pass.config, saved[kQkvOut]), attended, saved[kLse]);
  apply_gate(block);
}

void recompute(const BlockForward& block, Recompute) {
  auto& saved = block.saved.saved;
  norm_and_columns(block, block.weights.small[kInputNorm], block.weights.projections[kQkv], saved[kNormed],
                   saved[kRstd]);
  if (block.pass.config.has_attention_gate) apply_gate(block);
}

/// The gradients of q|k|v before norm and rotation.
void attention_gradients(const BackwardPass& pass, int64_t layer, const BlockWeights& weights,
                         BlockActivations& activations, const at::Tensor& d_attended, at::Tensor& d_qkv) {
  const ModelConfig& c = pass.forward.config;
  auto& saved = activations.saved;
  const at::Tensor& attended = saved[c.has_attention_gate ? kUngated : kAttended];
  const QkvViews places = split_qkv(c, d_qkv);
  // Keeps gradients in a backend's own memory alive until they are read.
  kernels::AttentionGradients gradients{places.q, places.k, places.v};
  pass.attention.backward(layer, attended_heads(c, d_attended), split_qkv(c, saved[kQkvOut]),
                          attended_heads(c, attended), saved[kLse], gradients);
  kernels::QkNorm norm = qk_norm(c, weights, activations);
  kernels::qk_norm_rope_backward(gradients, rotation(pass.forward, layer), norm, d_qkv);
}

/// The gradients of q|gate|k|v. d_attended becomes the gradient of the output before the gate.
void gated_gradients(const BackwardPass& pass, int64_t layer, const BlockWeights& weights,
                     BlockActivations& activations, at::Tensor d_attended, const at::Tensor& d_projected) {
  const ModelConfig& c = pass.forward.config;
  auto& saved = activations.saved;
  const GatedViews to = split_gated(c, d_projected);
  kernels::gated_activation_backward(d_attended, saved[kGate], saved[kUngated], saved[kGate], d_attended,
                                     kernels::Activation::kSigmoid);
  copy_columns("join_gate", attended_heads(c, saved[kGate]), to.gate);
  at::Tensor d_qkv = pass.buffers.gradient("d_qkv", d_attended.size(0));
  attention_gradients(pass, layer, weights, activations, d_attended, d_qkv);
  copy_columns("join_q", attended_heads(c, d_qkv), to.q);
  copy_columns("join_kv", d_qkv.narrow(1, c.num_heads * c.head_dim, to.kv.size(1)), to.kv);
}

void backward(const BackwardPass& pass, int64_t layer, BlockWeights& weights, BlockActivations& activations,
              const at::Tensor& d_attended, at::Tensor& d_hidden, bool need_input_grad) {
  auto& saved = activations.saved;
  Projection& qkv = weights.projections[kQkv];
  at::Tensor d_wide = pass.buffers.gradient_of("d_projected", qkv, d_hidden.size(0));
  at::Tensor d_projected = d_wide.narrow(1, 0, qkv.out_features);
  if (pass.forward.config.has_attention_gate) {
    gated_gradients(pass, layer, weights, activations, features(weights.projections[kO], d_attended), d_projected);
  } else {
    attention_gradients(pass, layer, weights, activations, d_attended, d_projected);
  }
  input_backward(pass, weights.small[kInputNorm], qkv, saved[kNormed], d_wide, activations.input, saved[kRstd],
                 d_hidden, need_input_grad);
}

}  // namespace

const BlockCode code = {kAttended, fill_saved, recompute, backward};

}  // namespace attention

const kernels::AttentionLayout& DocumentAttention::layout(int64_t layer) const {
  const int64_t window = config_.layer_window[static_cast<std::size_t>(layer)];
  return batch_.layout(window, config_.attention_scale, window == 0 ? backend_ : windowed_);
}

void DocumentAttention::forward(int64_t layer, const QkvViews& qkv, at::Tensor& out, at::Tensor& lse) {
  kernels::attention_forward(qkv.q, qkv.k, qkv.v, layout(layer), out, lse);
}

const kernels::Sequences& DocumentAttention::sequences() const { return batch_.sequences(); }

void DocumentAttention::backward(int64_t layer, const at::Tensor& d_out, const QkvViews& qkv, const at::Tensor& out,
                                 const at::Tensor& lse, kernels::AttentionGradients& gradients) const {
  kernels::attention_backward(d_out, qkv.q, qkv.k, qkv.v, out, lse, layout(layer), gradients);
}

}  // namespace lora_train::model
