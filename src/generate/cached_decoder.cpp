#include "cached_decoder.h"

#include <ATen/ATen.h>

#include "lora_train/kernels/embedding.h"
#include "lora_train/kernels/rms_norm.h"
#include "lora_train/kernels/skinny_gemm.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/lm_head.h"

namespace lora_train::generate {
namespace {

constexpr std::int64_t kHandful = 8;  // up to this many rows, the cost of a product is one read of the weights

template <class T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  return at::tensor(at::ArrayRef<T>(values), type).to(device);
}

}  // namespace

/// Writes the new keys and values of a layer to the cache, and attends to all of each sequence's.
class CachedDecoder::CachedAttention : public model::AttentionPass {
 public:
  CachedAttention(const model::ModelConfig& config, KeyValueCache& cache, const Tokens& tokens)
      : config_(config), cache_(cache), tokens_(tokens) {}

  void forward(std::int64_t layer, const model::QkvViews& qkv, at::Tensor& out, at::Tensor&) override {
    const auto index = static_cast<std::size_t>(layer);
    at::Tensor keys = cache_.keys[index], values = cache_.values[index];
    keys.index_copy_(0, tokens_.slots, qkv.k);
    values.index_copy_(0, tokens_.slots, qkv.v);
    kernels::attention_cached(qkv.q, keys, values, tokens_.layouts.at(config_.layer_window[index]), out);
  }

 private:
  const model::ModelConfig& config_;
  KeyValueCache& cache_;
  const Tokens& tokens_;
};

CachedDecoder::CachedDecoder(const model::ModelConfig& config, const model::ModelShape& shape,
                             model::BaseWeights& weights, kernels::AttentionBackend attention, std::int64_t max_tokens)
    : config_(config),
      shape_(shape),
      weights_(weights),
      attention_(attention),
      options_(weights.acquire_outer(model::Pass::kForward).embedding.options()),
      activations_(shape, {.max_tokens = max_tokens, .needs_backward = false}, {}, dtype(), device()) {
  weights.release_outer(model::Pass::kForward);
}

void CachedDecoder::reserve(std::int64_t cache_tokens, std::int64_t max_positions) {
  if (cache_.capacity < cache_tokens) {
    cache_ = {};  // frees the old one before the new one is allocated
    cache_ = KeyValueCache(config_, cache_tokens, options_);
  }
  const at::Tensor& cos = rope_.global.cos;
  if (cos.defined() && cos.size(0) >= max_positions) return;
  rope_ = model::make_rope(config_, max_positions, device());
}

CachedDecoder::Tokens CachedDecoder::place(std::span<const Piece> pieces) const {
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
  layout.scale = config_.attention_scale;
  layout.backend = attention_;
  if (!device().is_cpu()) {
    std::vector<std::int64_t> begins = layout.key_begin;
    begins.push_back(0);
    layout.cu_seqlens_q_device = on_device(layout.cu_seqlens_q, at::kInt, device());
    layout.key_begin_device = on_device(begins, at::kInt, device());
    layout.num_keys_device = on_device(layout.num_keys, at::kInt, device());
  }
  Tokens tokens{on_device(ids, at::kInt, device()),
                on_device(positions, at::kInt, device()),
                on_device(slots, at::kLong, device()),
                {},
                false};
  tokens.is_skinny = ids.size() == pieces.size() || static_cast<std::int64_t>(ids.size()) <= kHandful;
  for (const std::int64_t window : config_.layer_window) {
    layout.window = window;
    tokens.layouts.try_emplace(window, layout);
  }
  return tokens;
}

at::Tensor CachedDecoder::forward(std::span<const Piece> pieces, bool use_adapter) {
  const Tokens tokens = place(pieces);
  const std::int64_t N = tokens.ids.size(0);
  const model::OuterWeights& outer = weights_.acquire_outer(model::Pass::kForward);
  at::Tensor first = activations_.layer(0, N).front().input;
  kernels::embedding_forward(tokens.ids, outer.embedding, use_adapter ? outer.rows : kernels::TrainableRows{}, first,
                             model::embedding_scale(config_, dtype()));
  weights_.release_outer(model::Pass::kForward);
  CachedAttention attention(config_, cache_, tokens);
  const auto product = tokens.is_skinny ? model::Product::kSkinny : model::Product::kGemm;
  model::forward_layers({config_, shape_, rope_, tokens.positions, attention, {{}, {}, use_adapter, product}}, weights_,
                        activations_, N);
  return activations_.final_hidden.narrow(0, 0, N);
}

at::Tensor CachedDecoder::logits(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, bool use_adapter) {
  const model::LmHead head = model::lm_head_of(config_, weights_.acquire_outer(model::Pass::kForward));
  return model::lm_head_logits(head, hidden.index_select(0, on_device(rows, at::kLong, device())), use_adapter,
                               model::Product::kSkinny);
}

}  // namespace lora_train::generate
