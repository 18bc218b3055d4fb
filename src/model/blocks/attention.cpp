// Self-attention: norm, q|k|v, norm of q and k if the family has one, RoPE, attention, output projection.
// N tokens, D hidden, H heads, K kv heads, E head size.

#include "block.h"
#include "block_shapes.h"
#include "lora_train/kernels/aten.h"
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
  const NormWeight &q = weights.norms[kQNorm], &k = weights.norms[kKNorm];
  return {q.weight, k.weight, c.rms_norm_eps,      saved.saved[kQkRaw], saved.saved[kQkRstd],
          q.grad,   k.grad,   c.norm_weight_offset};
}

kernels::QkRotation rotation(const ForwardPass& pass, int64_t layer) {
  return {pass.config.num_heads, pass.config.num_kv_heads, pass.positions, pass.rope.of(pass.config, layer)};
}

void fill_saved(const BlockForward& block) {
  const auto& [pass, layer, weights, activations] = block;
  auto& saved = activations.saved;
  norm_and_columns(block, weights.norms[kInputNorm], weights.projections[kQkv], saved[kNormed], saved[kRstd]);
  projection_forward(weights.projections[kQkv], saved[kNormed], {}, saved[kQkvOut], pass.linear);
  kernels::QkNorm norm = qk_norm(pass.config, weights, activations);
  kernels::qk_norm_rope_forward(saved[kQkvOut], rotation(pass, layer), norm);
  at::Tensor attended = attended_heads(pass.config, saved[kAttended]);
  pass.attention.forward(layer, split_qkv(pass.config, saved[kQkvOut]), attended, saved[kLse]);
  fill_adapter_columns(weights.projections[kO], saved[kAttended], pass.linear);
}

void recompute(const BlockForward& block, Recompute) {
  auto& saved = block.saved.saved;
  norm_and_columns(block, block.weights.norms[kInputNorm], block.weights.projections[kQkv], saved[kNormed],
                   saved[kRstd]);
}

void backward(const BackwardPass& pass, int64_t layer, BlockWeights& weights, BlockActivations& activations,
              const at::Tensor& d_attended, at::Tensor& d_hidden, bool need_input_grad) {
  const ModelConfig& c = pass.forward.config;
  const LinearPass& linear = pass.forward.linear;
  auto& saved = activations.saved;
  Projection& qkv = weights.projections[kQkv];
  const int64_t N = d_hidden.size(0);
  at::Tensor d_wide_qkv = pass.buffers.gradient_of("d_qkv", qkv, N);
  at::Tensor d_qkv = d_wide_qkv.narrow(1, 0, qkv.out_features);
  {  // keeps gradients in a backend's own memory alive until they are read
    const QkvViews places = split_qkv(c, d_qkv);
    kernels::AttentionGradients gradients{places.q, places.k, places.v};
    pass.attention.backward(layer, attended_heads(c, d_attended), split_qkv(c, saved[kQkvOut]),
                            attended_heads(c, saved[kAttended]), saved[kLse], gradients);
    kernels::QkNorm norm = qk_norm(c, weights, activations);
    kernels::qk_norm_rope_backward(gradients, rotation(pass.forward, layer), norm, d_qkv);
  }
  NormWeight& input_norm = weights.norms[kInputNorm];
  const bool need_normed_grad = need_input_grad || input_norm.grad.defined();
  at::Tensor d_normed = pass.buffers.d_input(qkv, N);
  projection_backward(qkv, saved[kNormed], d_wide_qkv, d_normed, need_normed_grad, linear);
  if (!need_normed_grad) return;
  input_norm_backward(pass, input_norm, qkv, d_normed, activations.input, saved[kRstd], d_hidden);
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

void DocumentAttention::backward(int64_t layer, const at::Tensor& d_out, const QkvViews& qkv, const at::Tensor& out,
                                 const at::Tensor& lse, kernels::AttentionGradients& gradients) const {
  kernels::attention_backward(d_out, qkv.q, qkv.k, qkv.v, out, lse, layout(layer), gradients);
}

}  // namespace lora_train::model
