// H heads, K kv heads, E head size, C adapter columns of a projection.
#include "cached_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "lora_train/kernels/embedding.h"
#include "lora_train/kernels/few_rows.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/qk_norm_rope.h"
#include "lora_train/kernels/rms_norm.h"
#include "lora_train/kernels/swiglu.h"
#include "lora_train/model/lm_head.h"

namespace lora_train::generate {
namespace {

using model::LayerWeights;
using model::Projection;

constexpr std::int64_t kHandful = 8;  // rows up to which one reading of the weights is what a product costs

/// y = x weight^T + bias + residual.
void product(bool few_rows, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
             const at::Tensor& residual, at::Tensor& y) {
  if (few_rows) return kernels::few_rows_linear(x, weight, bias, residual, y);
  kernels::gemm(x, weight.t(), y, {.bias = bias, .residual = residual});
}

/// input [N, D + C], its first D columns filled. Without the adapter its columns are left out of the product.
void project(const Projection& p, bool few_rows, bool use_adapter, const at::Tensor& input, const at::Tensor& residual,
             at::Tensor& y) {
  const at::Tensor x = input.narrow(1, 0, p.in_features);
  if (p.num_columns == 0 || !use_adapter) {
    return product(few_rows, x, p.base_weight(), p.bias, residual, y);
  }
  at::Tensor columns = input.narrow(1, p.in_features, p.num_columns);
  product(few_rows, x, p.lora_a(), {}, {}, columns);
  product(few_rows, input, p.weight_and_columns(), p.bias, residual, y);
}

at::Tensor features(const Projection& projection, const at::Tensor& wide) {
  return wide.narrow(1, 0, projection.in_features);
}

/// Columns [begin, begin + heads) of head size E as [N, heads, E].
at::Tensor heads_of(const at::Tensor& buffer, std::int64_t begin, std::int64_t heads, std::int64_t E) {
  return buffer.narrow(1, begin * E, heads * E).unflatten(1, {heads, E});
}

std::vector<model::Recompute> no_recompute(const model::ModelConfig& config) {
  return std::vector<model::Recompute>(static_cast<std::size_t>(config.num_layers), model::Recompute::kOff);
}

model::ActivationShape shape_for(const at::TensorOptions& options, std::int64_t max_tokens) {
  return {.max_tokens = max_tokens, .dtype = options.dtype().toScalarType(), .needs_backward = false,
          .device = options.device()};
}

template <class T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  return at::tensor(at::ArrayRef<T>(values), type).to(device);
}

}  // namespace

CachedDecoder::CachedDecoder(const model::ModelConfig& config, model::WeightSource& weights,
                             kernels::AttentionBackend attention, std::int64_t max_tokens)
    : config_(config),
      weights_(weights),
      attention_(attention),
      options_(weights.outer().embedding.options()),
      activations_(config, weights, shape_for(options_, max_tokens), no_recompute(config)) {}

void CachedDecoder::reserve(std::int64_t cache_tokens, std::int64_t max_positions) {
  if (cache_.capacity < cache_tokens) {
    cache_ = {};  // before its successor
    cache_ = KeyValueCache(config_, cache_tokens, options_);
  }
  if (rope_.cos.defined() && rope_.cos.size(0) >= max_positions) return;
  const std::vector<float> inv_freq = model::rope_inv_freq(config_);
  rope_ = kernels::make_rope_table(at::tensor(at::ArrayRef<float>(inv_freq), at::kFloat), max_positions,
                                   model::rope_attention_factor(config_));
  rope_ = {rope_.cos.to(device()), rope_.sin.to(device())};
}

CachedDecoder::Tokens CachedDecoder::place(std::span<const Piece> pieces, bool use_adapter) const {
  std::vector<std::int32_t> ids, positions;
  std::vector<std::int64_t> slots;
  kernels::CachedLayout layout;
  layout.cu_seqlens_q = {0};
  for (const Piece& piece : pieces) {
    const auto count = static_cast<std::int64_t>(piece.ids.size());
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
    for (std::int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<std::int32_t>(piece.position + i));
      slots.push_back(piece.cache_begin + piece.position + i);
    }
    layout.cu_seqlens_q.push_back(layout.cu_seqlens_q.back() + count);
    layout.key_begin.push_back(piece.cache_begin);
    layout.num_keys.push_back(piece.position + count);
  }
  layout.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  layout.backend = attention_;
  if (!device().is_cpu()) {
    std::vector<std::int64_t> begins = layout.key_begin;
    begins.push_back(0);
    layout.cu_seqlens_q_device = on_device(layout.cu_seqlens_q, at::kInt, device());
    layout.key_begin_device = on_device(begins, at::kInt, device());
    layout.num_keys_device = on_device(layout.num_keys, at::kInt, device());
  }
  Tokens tokens{on_device(ids, at::kInt, device()), on_device(positions, at::kInt, device()),
                on_device(slots, at::kLong, device()), {}, use_adapter, false};
  tokens.few_rows = ids.size() == pieces.size() || static_cast<std::int64_t>(ids.size()) <= kHandful;
  for (const std::int64_t window : config_.layer_window) {
    layout.window = window;
    tokens.layouts.try_emplace(window, layout);
  }
  return tokens;
}

/// Puts the new keys and values into the cache and attends to all of each sequence's. qkv [N, (H + 2K) E].
void CachedDecoder::attend(std::int64_t layer, const Tokens& tokens, const at::Tensor& qkv, at::Tensor& out) {
  const std::int64_t H = config_.num_heads, K = config_.num_kv_heads, E = config_.head_dim;
  const auto index = static_cast<std::size_t>(layer);
  at::Tensor keys = cache_.keys[index], values = cache_.values[index];
  keys.index_copy_(0, tokens.slots, heads_of(qkv, H, K, E));
  values.index_copy_(0, tokens.slots, heads_of(qkv, H + K, K, E));
  kernels::attention_cached(heads_of(qkv, 0, H, E), keys, values, tokens.layouts.at(config_.layer_window[index]), out);
}

void CachedDecoder::layer_forward(const LayerWeights& w, std::int64_t layer, const Tokens& tokens,
                                  model::LayerActivations& b, at::Tensor& output) {
  const auto linear = [&](const Projection& p, const at::Tensor& input, const at::Tensor& residual, at::Tensor& y) {
    project(p, tokens.few_rows, tokens.use_adapter, input, residual, y);
  };
  at::Tensor normed = features(w.qkv, b.attention.normed);
  kernels::rms_norm_forward(b.input, w.input_norm.weight, config_.rms_norm_eps, normed, b.attention.rstd);
  linear(w.qkv, b.attention.normed, {}, b.attention.qkv);
  kernels::QkNorm norm;
  if (config_.qk_norm) {
    norm = {w.q_norm.weight, w.k_norm.weight, config_.rms_norm_eps, b.attention.qk_raw, b.attention.qk_rstd, {}, {}};
  }
  kernels::qk_norm_rope_forward(b.attention.qkv, {config_.num_heads, config_.num_kv_heads, tokens.positions, rope_}, norm);
  at::Tensor attended = heads_of(b.attention.out, 0, config_.num_heads, config_.head_dim);
  attend(layer, tokens, b.attention.qkv, attended);
  linear(w.o, b.attention.out, b.input, b.mlp.input);

  normed = features(w.gate_up, b.mlp.normed);
  kernels::rms_norm_forward(b.mlp.input, w.post_attention_norm.weight, config_.rms_norm_eps, normed, b.mlp.rstd);
  linear(w.gate_up, b.mlp.normed, {}, b.mlp.gate_up);
  at::Tensor hidden = features(w.down, b.mlp.hidden);
  kernels::swiglu_forward(b.mlp.gate_up, hidden);
  linear(w.down, b.mlp.hidden, b.mlp.input, output);
}

at::Tensor CachedDecoder::forward(std::span<const Piece> pieces, bool use_adapter) {
  const Tokens tokens = place(pieces, use_adapter);
  const std::int64_t N = tokens.ids.size(0), num_layers = config_.num_layers;
  const model::OuterWeights& outer = weights_.outer();
  at::Tensor first = activations_.layer(0, N).input;
  kernels::embedding_forward(tokens.ids, outer.embedding, use_adapter ? outer.rows : kernels::TrainableRows{}, first);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    model::LayerActivations buffers = activations_.layer(layer, N);
    at::Tensor output = layer + 1 < num_layers ? activations_.layer(layer + 1, N).input
                                               : activations_.final_hidden.narrow(0, 0, N);
    const LayerWeights& weights = weights_.acquire(layer, model::Pass::kForward);
    layer_forward(weights, layer, tokens, buffers, output);
    weights_.release(layer, model::Pass::kForward);
  }
  return activations_.final_hidden.narrow(0, 0, N);
}

at::Tensor CachedDecoder::logits(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, bool use_adapter) {
  const model::LmHead head{weights_.outer(), config_.rms_norm_eps};
  return model::lm_head_logits(head, hidden.index_select(0, on_device(rows, at::kLong, device())), use_adapter,
                               model::HeadProduct::kFewRows);
}

}  // namespace lora_train::generate
