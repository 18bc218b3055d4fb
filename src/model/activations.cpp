#include "lora_train/model/activations.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lora_train::model {
namespace {

at::Tensor rows(const at::Tensor& buffer, int64_t num_tokens) {
  return buffer.defined() ? buffer.narrow(0, 0, num_tokens) : buffer;
}

}  // namespace

at::Tensor Activations::make(at::IntArrayRef row, at::ScalarType dtype) {
  std::vector<int64_t> shape{shape_.max_tokens};
  shape.insert(shape.end(), row.begin(), row.end());
  const at::Tensor buffer = at::empty(shape, at::TensorOptions(dtype).device(shape_.device));
  bytes_ += static_cast<int64_t>(buffer.nbytes());
  return buffer;
}

LayerActivations Activations::make_layer(const ModelConfig& c, const LayerWeights& w, const LayerActivations* shared,
                                         Recompute mode) {
  const int64_t heads = c.num_heads, kv_heads = c.num_kv_heads, E = c.head_dim;
  const auto keep = [&](Recompute least, const at::Tensor* other, at::IntArrayRef row, at::ScalarType dtype) {
    return shared != nullptr && mode >= least ? *other : make(row, dtype);
  };
  LayerActivations a;
  const AttentionActivations* attention = shared != nullptr ? &shared->attention : nullptr;
  const MlpActivations* mlp = shared != nullptr ? &shared->mlp : nullptr;
  const at::ScalarType dtype = shape_.dtype;
  const auto pick = [](const auto* from, auto member) { return from != nullptr ? &(from->*member) : nullptr; };
  using A = AttentionActivations;
  using M = MlpActivations;
  const Recompute cheap = Recompute::kCheap, product = Recompute::kGateUp, full = Recompute::kFull;
  a.attention.normed = keep(cheap, pick(attention, &A::normed), w.qkv.input_width(), dtype);
  a.attention.rstd = keep(full, pick(attention, &A::rstd), {}, at::kFloat);
  a.attention.qkv = keep(full, pick(attention, &A::qkv), (heads + 2 * kv_heads) * E, dtype);
  if (c.qk_norm) {
    a.attention.qk_raw = keep(full, pick(attention, &A::qk_raw), (heads + kv_heads) * E, dtype);
    a.attention.qk_rstd = keep(full, pick(attention, &A::qk_rstd), heads + kv_heads, at::kFloat)
                              .view({heads + kv_heads, shape_.max_tokens});
  }
  a.attention.out = keep(full, pick(attention, &A::out), w.o.input_width(), dtype);
  a.attention.lse = keep(full, pick(attention, &A::lse), heads, at::kFloat);
  a.mlp.input = keep(full, pick(mlp, &M::input), c.hidden_size, dtype);
  a.mlp.normed = keep(cheap, pick(mlp, &M::normed), w.gate_up.input_width(), dtype);
  a.mlp.rstd = keep(full, pick(mlp, &M::rstd), {}, at::kFloat);
  a.mlp.gate_up = keep(product, pick(mlp, &M::gate_up), 2 * c.intermediate_size, dtype);
  a.mlp.hidden = keep(cheap, pick(mlp, &M::hidden), w.down.input_width(), dtype);
  return a;
}

Activations::Activations(const ModelConfig& config, WeightSource& weights, const ActivationShape& shape,
                         std::vector<Recompute> recompute)
    : shape_(shape), recompute_(std::move(recompute)) {
  const int64_t D = config.hidden_size, E = config.head_dim;
  const int64_t qk = (config.num_heads + config.num_kv_heads) * E;
  int64_t widest = 0, d_hidden_width = D, d_qkv_width = qk + config.num_kv_heads * E;
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < (shape.needs_backward ? config.num_layers : 2); ++i) inputs.push_back(make(D, shape.dtype));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const LayerWeights& layer = weights.acquire(i, Pass::kForward);
    const Recompute mode = shape.needs_backward ? recompute_[static_cast<std::size_t>(i)] : Recompute::kFull;
    // Layers differ in adapter columns, so a shared buffer is only reused where it is as wide.
    const LayerActivations* shared = nullptr;
    for (const auto& other : layers_) {
      if (other.attention.normed.size(1) == layer.qkv.input_width() &&
          other.attention.out.size(1) == layer.o.input_width() &&
          other.mlp.normed.size(1) == layer.gate_up.input_width() &&
          other.mlp.hidden.size(1) == layer.down.input_width()) {
        shared = &other;
        break;
      }
    }
    LayerActivations made = make_layer(config, layer, shared, mode);
    made.input = inputs[static_cast<std::size_t>(i) % inputs.size()];
    layers_.push_back(std::move(made));
    for (const Projection* projection : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      widest = std::max(widest, projection->input_width());
    }
    d_hidden_width = std::max({d_hidden_width, layer.o.d_output_width(), layer.down.d_output_width()});
    d_qkv_width = std::max(d_qkv_width, layer.qkv.d_output_width());
    weights.release(i, Pass::kForward);
  }
  final_hidden = make(D, shape.dtype);
  if (shape.has_dropout) scratch = make(widest, shape.dtype);
  if (!shape.needs_backward) return;
  wide_d_hidden_ = make(d_hidden_width, shape.dtype);
  d_hidden = wide_d_hidden_.narrow(1, 0, D);
  wide_d_qkv_ = make(d_qkv_width, shape.dtype);
  d_qkv = wide_d_qkv_.narrow(1, 0, qk + config.num_kv_heads * E);
  d_input_ = at::empty({shape.max_tokens * widest}, at::TensorOptions(shape.dtype).device(shape.device));
  bytes_ += static_cast<int64_t>(d_input_.nbytes());
}

Recompute choose_recompute(const ModelConfig& config, WeightSource& weights, const ActivationShape& shape,
                           int64_t budget_bytes) {
  ActivationShape counted = shape;
  counted.device = at::kMeta;
  for (const Recompute mode : {Recompute::kOff, Recompute::kCheap, Recompute::kGateUp}) {
    const std::vector<Recompute> modes(static_cast<std::size_t>(config.num_layers), mode);
    if (Activations(config, weights, counted, modes).bytes() <= budget_bytes) return mode;
  }
  return Recompute::kFull;
}

LayerActivations Activations::layer(int64_t layer, int64_t num_tokens) const {
  const LayerActivations& whole = layers_[static_cast<std::size_t>(layer)];
  LayerActivations cut;
  cut.input = rows(whole.input, num_tokens);
  const AttentionActivations& a = whole.attention;
  cut.attention = {rows(a.normed, num_tokens), rows(a.rstd, num_tokens),    rows(a.qkv, num_tokens),
                   rows(a.qk_raw, num_tokens), a.qk_rstd.defined() ? a.qk_rstd.narrow(1, 0, num_tokens) : a.qk_rstd,
                   rows(a.out, num_tokens),    rows(a.lse, num_tokens)};
  const MlpActivations& m = whole.mlp;
  cut.mlp = {rows(m.input, num_tokens), rows(m.normed, num_tokens), rows(m.rstd, num_tokens),
             rows(m.gate_up, num_tokens), rows(m.hidden, num_tokens)};
  return cut;
}

at::Tensor Activations::d_input(const Projection& projection, int64_t num_tokens) const {
  const int64_t width = projection.d_input_width();
  return d_input_.narrow(0, 0, num_tokens * width).view({num_tokens, width});
}

at::Tensor Activations::d_hidden_of(const Projection& projection, int64_t num_tokens) const {
  return rows(wide_d_hidden_, num_tokens).narrow(1, 0, projection.d_output_width());
}

at::Tensor Activations::d_qkv_of(const Projection& projection, int64_t num_tokens) const {
  return rows(wide_d_qkv_, num_tokens).narrow(1, 0, projection.d_output_width());
}

}  // namespace lora_train::model
