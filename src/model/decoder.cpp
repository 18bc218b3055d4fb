#include "lora_train/model/decoder.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/kernels/attention.h"
#include "lora_train/kernels/qk_norm_rope.h"
#include "lora_train/kernels/rms_norm.h"
#include "lora_train/kernels/swiglu.h"

// N tokens, D hidden, H heads, K kv heads, E head size, F ffn.
namespace lora_train::model {
namespace {

at::Tensor* defined_or_null(at::Tensor& tensor) { return tensor.defined() ? &tensor : nullptr; }

/// The first D columns of a buffer that carries adapter columns.
at::Tensor features(const Projection& projection, const at::Tensor& wide) {
  return wide.narrow(1, 0, projection.in_features);
}

/// Columns [begin, begin + heads) of head size E as [N, heads, E].
at::Tensor heads_of(const at::Tensor& buffer, int64_t begin, int64_t heads, int64_t E) {
  return buffer.narrow(1, begin * E, heads * E).unflatten(1, {heads, E});
}

void norm_and_columns(const Decoder& decoder, const at::Tensor& x, const NormWeight& norm, const Projection& projection,
                      const DropoutContext& dropout, const at::Tensor& scratch, at::Tensor& normed, at::Tensor& rstd) {
  at::Tensor y = features(projection, normed);
  kernels::rms_norm_forward(x, norm.weight, decoder.config.rms_norm_eps, y, rstd);
  fill_adapter_columns(projection, normed, dropout, scratch);
}

/// Norm over E of every q and k head (Qwen3), with what it saves and its gradients; none in other families.
kernels::QkNorm qk_norm(const Decoder& decoder, const LayerWeights& weights, const AttentionActivations& saved) {
  if (!decoder.config.qk_norm) return {};
  return {weights.q_norm.weight, weights.k_norm.weight, decoder.config.rms_norm_eps, saved.qk_raw, saved.qk_rstd,
          weights.q_norm.grad, weights.k_norm.grad};
}

kernels::QkRotation qk_rotation(const Decoder& decoder, const Batch& batch) {
  return {decoder.config.num_heads, decoder.config.num_kv_heads, batch.positions, decoder.rope};
}

const kernels::AttentionLayout& attention_layout(const Decoder& decoder, int64_t layer, const Batch& batch) {
  const int64_t window = decoder.config.layer_window[static_cast<std::size_t>(layer)];
  return batch.layout(window, 1.0 / std::sqrt(static_cast<double>(decoder.config.head_dim)),
                      window == 0 ? decoder.attention : decoder.windowed_attention);
}

struct QkvViews {
  at::Tensor q, k, v;  ///< [N, heads, E]
};

QkvViews split_qkv(const ModelConfig& c, const at::Tensor& qkv) {
  return {heads_of(qkv, 0, c.num_heads, c.head_dim), heads_of(qkv, c.num_heads, c.num_kv_heads, c.head_dim),
          heads_of(qkv, c.num_heads + c.num_kv_heads, c.num_kv_heads, c.head_dim)};
}

/// Everything of the attention block before the output projection.
void attention_block_forward(const Decoder& decoder, const LayerWeights& weights, int64_t layer, const Batch& batch,
                             LayerActivations& saved, const at::Tensor& scratch) {
  AttentionActivations& a = saved.attention;
  norm_and_columns(decoder, saved.input, weights.input_norm, weights.qkv, batch.dropout, scratch, a.normed, a.rstd);
  projection_forward(weights.qkv, a.normed, {}, a.qkv);
  kernels::QkNorm norm = qk_norm(decoder, weights, a);
  kernels::qk_norm_rope_forward(a.qkv, qk_rotation(decoder, batch), norm);
  const QkvViews views = split_qkv(decoder.config, a.qkv);
  at::Tensor out = heads_of(a.out, 0, decoder.config.num_heads, decoder.config.head_dim);
  kernels::attention_forward(views.q, views.k, views.v, attention_layout(decoder, layer, batch), out, a.lse);
  fill_adapter_columns(weights.o, a.out, batch.dropout, scratch);
}

void swiglu_and_columns(const LayerWeights& weights, const Batch& batch, MlpActivations& m, const at::Tensor& scratch) {
  at::Tensor hidden = features(weights.down, m.hidden);
  kernels::swiglu_forward(m.gate_up, hidden);
  fill_adapter_columns(weights.down, m.hidden, batch.dropout, scratch);
}

/// Everything of the layer before the down projection: all that the backward needs.
void forward_until_down(const Decoder& decoder, const LayerWeights& weights, int64_t layer, const Batch& batch,
                        LayerActivations& saved, const at::Tensor& scratch) {
  attention_block_forward(decoder, weights, layer, batch, saved, scratch);
  MlpActivations& m = saved.mlp;
  projection_forward(weights.o, saved.attention.out, saved.input, m.input);
  norm_and_columns(decoder, m.input, weights.post_attention_norm, weights.gate_up, batch.dropout, scratch, m.normed,
                   m.rstd);
  projection_forward(weights.gate_up, m.normed, {}, m.gate_up);
  swiglu_and_columns(weights, batch, m, scratch);
}

/// Computes again what the layer's mode did not keep.
void recompute(const Decoder& decoder, const LayerWeights& weights, int64_t layer, const Batch& batch,
               LayerActivations& saved, const Activations& buffers) {
  const Recompute mode = buffers.recompute(layer);
  if (mode == Recompute::kFull) forward_until_down(decoder, weights, layer, batch, saved, buffers.scratch);
  if (mode != Recompute::kCheap && mode != Recompute::kGateUp) return;
  norm_and_columns(decoder, saved.input, weights.input_norm, weights.qkv, batch.dropout, buffers.scratch,
                   saved.attention.normed, saved.attention.rstd);
  norm_and_columns(decoder, saved.mlp.input, weights.post_attention_norm, weights.gate_up, batch.dropout,
                   buffers.scratch, saved.mlp.normed, saved.mlp.rstd);
  if (mode == Recompute::kGateUp) projection_forward(weights.gate_up, saved.mlp.normed, {}, saved.mlp.gate_up);
  swiglu_and_columns(weights, batch, saved.mlp, buffers.scratch);
}

void mlp_backward(LayerWeights& weights, const Batch& batch, MlpActivations& m,
                  const Activations& buffers, at::Tensor& d_hidden) {
  const int64_t N = batch.num_tokens();
  at::Tensor d_act = buffers.d_input(weights.down, N);
  at::Tensor d_output = buffers.d_hidden_of(weights.down, N);
  projection_backward(weights.down, m.hidden, d_output, d_act, true, batch.dropout, buffers.scratch);
  kernels::swiglu_backward(features(weights.down, d_act), m.gate_up, m.gate_up);
  at::Tensor d_normed = buffers.d_input(weights.gate_up, N);
  projection_backward(weights.gate_up, m.normed, m.gate_up, d_normed, true, batch.dropout, buffers.scratch);
  kernels::rms_norm_backward(features(weights.gate_up, d_normed), m.input, weights.post_attention_norm.weight, m.rstd,
                             d_hidden, true, defined_or_null(weights.post_attention_norm.grad));
}

/// From the gradient of attention's output to that of the q|k|v projection's. A backend's own gradients live until they are
/// read.
void attention_and_rope_backward(const Decoder& decoder, const LayerWeights& weights, int64_t layer, const Batch& batch,
                                 const AttentionActivations& a, const at::Tensor& d_out, at::Tensor& d_qkv) {
  const ModelConfig& c = decoder.config;
  const QkvViews views = split_qkv(c, a.qkv), places = split_qkv(c, d_qkv);
  kernels::AttentionGradients gradients{places.q, places.k, places.v};
  kernels::attention_backward(heads_of(d_out, 0, c.num_heads, c.head_dim), views.q, views.k, views.v,
                              heads_of(a.out, 0, c.num_heads, c.head_dim), a.lse,
                              attention_layout(decoder, layer, batch), gradients);
  kernels::QkNorm norm = qk_norm(decoder, weights, a);
  kernels::qk_norm_rope_backward(gradients, qk_rotation(decoder, batch), norm, d_qkv);
}

void attention_block_backward(const Decoder& decoder, LayerWeights& weights, int64_t layer, const Batch& batch,
                              LayerActivations& saved, Activations& buffers, at::Tensor& d_hidden, bool need_input_grad) {
  const int64_t N = batch.num_tokens();
  AttentionActivations& a = saved.attention;
  at::Tensor d_out = buffers.d_input(weights.o, N);
  at::Tensor d_output = buffers.d_hidden_of(weights.o, N);
  projection_backward(weights.o, a.out, d_output, d_out, true, batch.dropout, buffers.scratch);
  at::Tensor d_qkv = buffers.d_qkv.narrow(0, 0, N);
  attention_and_rope_backward(decoder, weights, layer, batch, a, d_out, d_qkv);
  at::Tensor d_normed = buffers.d_input(weights.qkv, N);
  const bool need_normed_grad = need_input_grad || weights.input_norm.grad.defined();
  at::Tensor d_wide_qkv = buffers.d_qkv_of(weights.qkv, N);
  projection_backward(weights.qkv, a.normed, d_wide_qkv, d_normed, need_normed_grad, batch.dropout, buffers.scratch);
  if (!need_normed_grad) return;
  kernels::rms_norm_backward(features(weights.qkv, d_normed), saved.input, weights.input_norm.weight, a.rstd, d_hidden,
                             true, defined_or_null(weights.input_norm.grad));
}

}  // namespace

Decoder make_decoder(const ModelConfig& config, WeightSource& weights, at::ScalarType dtype, int64_t max_seq_len,
                     const FirstNeeded& first_needed) {
  const std::vector<float> inv_freq = rope_inv_freq(config);
  const at::Tensor frequencies = at::tensor(at::ArrayRef<float>(inv_freq), at::kFloat);
  kernels::RopeTable rope = kernels::make_rope_table(frequencies, max_seq_len, rope_attention_factor(config));
  const at::Device device = weights.outer().embedding.device();
  rope = {rope.cos.to(device), rope.sin.to(device)};  // made on the host: the same on every device
  return {config, dtype, weights, rope, first_needed};
}

void layer_forward(const Decoder& decoder, const LayerWeights& weights, int64_t layer, const Batch& batch,
                   LayerActivations& saved, const at::Tensor& scratch, at::Tensor& output) {
  forward_until_down(decoder, weights, layer, batch, saved, scratch);
  projection_forward(weights.down, saved.mlp.hidden, saved.mlp.input, output);
}

void layer_backward(const Decoder& decoder, LayerWeights& weights, int64_t layer, const Batch& batch,
                    LayerActivations& saved, Activations& buffers, at::Tensor& d_hidden, bool need_input_grad) {
  recompute(decoder, weights, layer, batch, saved, buffers);
  mlp_backward(weights, batch, saved.mlp, buffers, d_hidden);
  attention_block_backward(decoder, weights, layer, batch, saved, buffers, d_hidden, need_input_grad);
}

void decoder_forward(Decoder& decoder, const Batch& batch, Activations& activations) {
  const int64_t N = batch.num_tokens(), num_layers = decoder.config.num_layers;
  if (N > activations.max_tokens()) throw ShapeError("decoder_forward", "more tokens than were planned for");
  const OuterWeights& outer = decoder.weights.outer();
  at::Tensor first = activations.layer(0, N).input;
  kernels::embedding_forward(batch.ids, outer.embedding, outer.rows, first);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    LayerActivations saved = activations.layer(layer, N);
    at::Tensor output = layer + 1 < num_layers ? activations.layer(layer + 1, N).input
                                               : activations.final_hidden.narrow(0, 0, N);
    const LayerWeights& weights = decoder.weights.acquire(layer, Pass::kForward);
    layer_forward(decoder, weights, layer, batch, saved, activations.scratch, output);
    decoder.weights.release(layer, Pass::kForward);
  }
}

void decoder_backward(Decoder& decoder, const Batch& batch, Activations& activations) {
  const int64_t N = batch.num_tokens();
  at::Tensor d_hidden = activations.d_hidden.narrow(0, 0, N);
  for (int64_t layer = decoder.config.num_layers - 1; layer >= decoder.first_needed.first_layer; --layer) {
    LayerActivations saved = activations.layer(layer, N);
    const bool need_input_grad = layer > decoder.first_needed.first_layer || decoder.first_needed.embedding;
    LayerWeights& weights = decoder.weights.acquire(layer, Pass::kBackward);
    layer_backward(decoder, weights, layer, batch, saved, activations, d_hidden, need_input_grad);
    decoder.weights.release(layer, Pass::kBackward);
  }
  if (!decoder.first_needed.embedding) return;
  OuterWeights& outer = decoder.weights.outer();
  kernels::embedding_backward(batch.ids, d_hidden, defined_or_null(outer.grad_embedding), outer.rows, batch.order);
}

}  // namespace lora_train::model
