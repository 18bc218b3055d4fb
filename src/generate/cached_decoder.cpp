#include "cached_decoder.h"

#include <ATen/ops/empty.h>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/embedding/embedding.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/sampling/sampling.h"
#include "lora_train/model/decoder.h"

namespace lora_train::generate {

namespace {

/// The states of a gated delta net, zero.
model::RecurrentStates make_states(const model::ModelConfig& config, std::int64_t num_states,
                                   const at::TensorOptions& options) {
  const kernels::GatedDeltaSizes& sizes = config.gated_delta;
  const auto rule_options = options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat);
  return {at::zeros({num_states, sizes.qkv_width(), config.convolution_taps - 1}, options),
          at::zeros({num_states, sizes.value_heads, sizes.key_size, sizes.value_size}, rule_options)};
}

}  // namespace

KeyValueCache::KeyValueCache(const model::ModelConfig& config, std::int64_t num_tokens, std::int64_t num_states,
                             const at::TensorOptions& options)
    : capacity(num_tokens) {
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool has_keys = config.kind_of(layer) == model::LayerKind::kAttention;
    const auto make = [&] {
      return has_keys ? at::empty({capacity, config.num_kv_heads, config.head_dim}, options) : at::Tensor();
    };
    keys.push_back(make());
    values.push_back(make());
    states.push_back(has_keys ? model::RecurrentStates{} : make_states(config, num_states, options));
  }
}

std::int64_t KeyValueCache::bytes() const {
  std::int64_t sum = 0;
  const auto add = [&](const at::Tensor& t) { sum += t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0; };
  for (std::size_t layer = 0; layer < keys.size(); ++layer) {
    for (const at::Tensor* t : {&keys[layer], &values[layer], &states[layer].convolution, &states[layer].rule}) add(*t);
  }
  return sum;
}

std::int64_t room_for(std::int64_t num_tokens) {
  constexpr std::int64_t kBlock = 16;
  return (num_tokens + kBlock - 1) / kBlock * kBlock;
}

std::optional<CachePlace> CacheAllocator::allocate(std::int64_t num_tokens) {
  const std::int64_t wanted = room_for(num_tokens);
  std::int64_t begin = 0;
  for (const auto& [taken_begin, taken] : taken_) {
    if (taken_begin - begin >= wanted) break;
    begin = taken.end;
  }
  if (begin + wanted > capacity_) return std::nullopt;
  std::int64_t row = 0;
  const auto is_taken = [&] {
    return std::ranges::any_of(taken_, [&](const auto& entry) { return entry.second.state_row == row; });
  };
  while (is_taken()) ++row;
  taken_[begin] = {begin + wanted, row};
  return CachePlace{begin, row};
}

void CacheAllocator::free(const CachePlace& place) { taken_.erase(place.begin); }

namespace {

constexpr std::int64_t kHandful = 8;  // up to this many rows, the cost of a product is one read of the weights

std::vector<std::int32_t> as_int32(const std::vector<std::int64_t>& values) { return {values.begin(), values.end()}; }

/// Writes the rows of `from` [N, K, E] to the slots of a cache [capacity, K, E].
void write_slots(const at::Tensor& from, const at::Tensor& slots, at::Tensor& cache) {
  if (kernels::implementation_for(KernelName::kEmbedding, cache) != kernels::Implementation::kCuda) {
    cache.index_copy_(0, slots, from);
    return;
  }
  at::Tensor rows = cache.view({cache.size(0), -1});
  kernels::scatter_rows(from.view({from.size(0), rows.size(1)}), slots, rows);
}

}  // namespace

/// Writes the new keys and values of a layer to the cache, and attends to all keys of each sequence.
class CachedDecoder::CachedAttention : public model::AttentionPass {
 public:
  CachedAttention(const model::ModelConfig& config, KeyValueCache& cache, const PassTokens& tokens)
      : config_(config), cache_(cache), tokens_(tokens) {}

  const kernels::Sequences& sequences() const override { return tokens_.sequences; }
  model::RecurrentStates states(std::int64_t layer) const override {
    return cache_.states[static_cast<std::size_t>(layer)];
  }

  void forward(std::int64_t layer, const model::QkvViews& qkv, at::Tensor& out, at::Tensor&) override {
    const auto index = static_cast<std::size_t>(layer);
    at::Tensor keys = cache_.keys[index], values = cache_.values[index];
    write_slots(qkv.k, tokens_.slots, keys);
    write_slots(qkv.v, tokens_.slots, values);
    kernels::attention_cached(qkv.q, keys, values, tokens_.layouts.at(config_.layer_window[index]), out);
  }

 private:
  const model::ModelConfig& config_;
  KeyValueCache& cache_;
  const PassTokens& tokens_;
};

CachedDecoder::CachedDecoder(const model::ModelConfig& config, const model::ModelShape& shape,
                             model::BaseWeights& weights, kernels::AttentionBackend attention, std::int64_t max_tokens,
                             std::int64_t max_sequences)
    : config_(config),
      shape_(shape),
      weights_(weights),
      attention_(attention),
      options_(weights.acquire_outer(model::Pass::kForward).final_norm.weight.options()),
      embedding_scale_(model::embedding_scale(config, dtype())),
      activations_(shape, {.max_tokens = max_tokens, .needs_backward = false}, {}, dtype(), device()),
      max_sequences_(max_sequences) {
  weights.release_outer(model::Pass::kForward);
}

void CachedDecoder::reserve(std::int64_t cache_tokens, std::int64_t max_positions) {
  if (cache_.capacity < cache_tokens) {
    cache_ = {};  // frees the old one before the new one is allocated
    cache_ = KeyValueCache(config_, cache_tokens, max_sequences_ + 1, options_);
  }
  const at::Tensor& cos = rope_.global.cos;
  if (cos.defined() && cos.size(0) >= max_positions) return;
  rope_ = model::make_rope(config_, max_positions, device());
}

void CachedDecoder::clear_states(const std::vector<std::int64_t>& rows) {
  if (rows.empty()) return;
  const at::Tensor indices = upload(rows, device());
  for (model::RecurrentStates& layer : cache_.states) {
    if (!layer.rule.defined()) continue;
    layer.convolution.index_fill_(0, indices, 0);
    layer.rule.index_fill_(0, indices, 0);
  }
}

void CachedDecoder::copy_state(std::int64_t from_row, std::int64_t to_row) {
  for (model::RecurrentStates& layer : cache_.states) {
    if (!layer.rule.defined()) continue;
    layer.convolution[to_row].copy_(layer.convolution[from_row]);
    layer.rule[to_row].copy_(layer.rule[from_row]);
  }
}

PassTokens CachedDecoder::place(std::span<const Piece> pieces) {
  std::vector<std::int32_t> ids, positions;
  std::vector<std::int64_t> slots, owners, state_rows, new_rows;
  kernels::CachedLayout layout;
  layout.cu_seqlens_q = {0};
  for (const Piece& piece : pieces) {
    const auto count = static_cast<std::int64_t>(piece.ids.size());
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
    for (std::int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<std::int32_t>(piece.position + i));
      slots.push_back(piece.place.begin + piece.position + i);
      if (piece.owner) owners.push_back(*piece.owner);
    }
    layout.cu_seqlens_q.push_back(layout.cu_seqlens_q.back() + count);
    layout.key_begin.push_back(piece.place.begin);
    layout.num_keys.push_back(piece.position + count);
    state_rows.push_back(piece.place.state_row);
    if (piece.position == 0) new_rows.push_back(piece.place.state_row);
  }
  kernels::Sequences sequences;
  if (config_.is_hybrid()) {
    clear_states(new_rows);
    sequences = kernels::make_sequences(layout.cu_seqlens_q, device());
    sequences.state_rows = upload(state_rows, device());
  }
  if (!device().is_cpu()) {
    std::vector<std::int64_t> begins = layout.key_begin;
    begins.push_back(0);
    layout.cu_seqlens_q_device = upload(as_int32(layout.cu_seqlens_q), device());
    layout.key_begin_device = upload(as_int32(begins), device());
    layout.num_keys_device = upload(as_int32(layout.num_keys), device());
  }
  const bool is_skinny = ids.size() == pieces.size() || static_cast<std::int64_t>(ids.size()) <= kHandful;
  return {upload(ids, device()),
          upload(positions, device()),
          upload(slots, device()),
          by_window(std::move(layout)),
          is_skinny,
          owners.empty() ? at::Tensor() : upload(owners, device()).unsqueeze(1),
          std::move(sequences)};
}

std::map<std::int64_t, kernels::CachedLayout> CachedDecoder::by_window(kernels::CachedLayout layout) const {
  layout.scale = config_.attention_scale;
  layout.backend = attention_;
  std::map<std::int64_t, kernels::CachedLayout> layouts;
  for (const std::int64_t window : config_.layer_window) {
    layout.window = window;
    layouts.try_emplace(window, layout);
  }
  return layouts;
}

std::string CachedDecoder::refuses_max_keys() const {
  return kernels::refuses_max_keys(device(), dtype(), config_.head_dim, attention_);
}

bool CachedDecoder::samples_on_device() const {
  const at::Tensor& any = rope_.global.cos;
  return kernels::samples_on_device(any) && kernels::has_native_kernel(KernelName::kEmbedding, any);
}

at::Tensor CachedDecoder::forward(std::span<const Piece> pieces, bool use_adapter) {
  return forward(place(pieces), use_adapter);
}

at::Tensor CachedDecoder::forward(const PassTokens& tokens, bool use_adapter) {
  const std::int64_t N = tokens.ids.size(0);
  const model::OuterWeights& outer = weights_.acquire_outer(model::Pass::kForward);
  at::Tensor first = activations_.layer(0, N).front().input;
  kernels::embedding_forward(tokens.ids, outer.embedding, use_adapter ? outer.rows : kernels::TrainableRows{}, first,
                             embedding_scale_);
  weights_.release_outer(model::Pass::kForward);
  CachedAttention attention(config_, cache_, tokens);
  const auto product = tokens.is_skinny ? model::Product::kSkinny : model::Product::kGemm;
  model::forward_layers(
      {config_, shape_, rope_, tokens.positions, attention, {{}, {}, use_adapter, product, tokens.owners}}, weights_,
      activations_, N);
  return activations_.final_hidden.narrow(0, 0, N);
}

at::Tensor CachedDecoder::logits(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, bool use_adapter) {
  const model::LmHead head = model::lm_head_of(config_, weights_.acquire_outer(model::Pass::kForward));
  return model::lm_head_logits(head, hidden.index_select(0, upload(rows, device())), use_adapter,
                               model::Product::kSkinny);
}

void CachedDecoder::logits(model::LmHeadRows& rows, bool use_adapter) {
  const model::LmHead head = model::lm_head_of(config_, weights_.acquire_outer(model::Pass::kForward));
  model::lm_head_forward(head, rows, use_adapter);
}

}  // namespace lora_train::generate
