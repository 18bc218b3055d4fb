// The decoder for generation: forward only, with a key-value cache. N tokens of a pass, D hidden, V vocabulary.
#pragma once

#include <span>

#include "key_value_cache.h"
#include "lora_train/kernels/attention_cache.h"
#include "lora_train/model/layer.h"

namespace lora_train::generate {

/// The next tokens of the sequence at cache_begin, which already has `position` tokens in the cache.
struct Piece {
  std::int64_t cache_begin = 0, position = 0;
  std::span<const std::int32_t> ids;
};

/// Its buffers have a fixed size. Not thread-safe.
class CachedDecoder {
 public:
  /// A pass takes at most max_tokens tokens. `weights` must outlive the decoder.
  CachedDecoder(const model::ModelConfig& config, const model::ModelShape& shape, model::BaseWeights& weights,
                kernels::AttentionBackend attention, std::int64_t max_tokens);

  /// Allocates a cache for cache_tokens tokens, unless it is already that large; the old contents are then lost. Prepares RoPE
  /// for positions below max_positions.
  void reserve(std::int64_t cache_tokens, std::int64_t max_positions);

  /// The last layer's output [N, D] for the tokens of all pieces, side by side; adds their keys and values to the cache. If every
  /// piece is one token, or all together are a handful, a row's bits depend only on its own sequence.
  at::Tensor forward(std::span<const Piece> pieces, bool use_adapter);

  /// Logits [rows, V] fp32 for these rows of forward()'s result.
  at::Tensor logits(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, bool use_adapter);

  const KeyValueCache& cache() const { return cache_; }
  at::Device device() const { return options_.device(); }
  at::ScalarType dtype() const { return options_.dtype().toScalarType(); }

 private:
  /// A pass on the device.
  struct Tokens {
    at::Tensor ids, positions, slots;                       ///< [N] int32, int32, int64
    std::map<std::int64_t, kernels::CachedLayout> layouts;  ///< by window
    bool is_skinny = false;                                 ///< so few rows that reading the weights is the cost
  };
  class CachedAttention;
  Tokens place(std::span<const Piece> pieces) const;

  const model::ModelConfig config_;
  const model::ModelShape shape_;
  model::BaseWeights& weights_;
  kernels::AttentionBackend attention_;
  at::TensorOptions options_;
  model::Activations activations_;
  KeyValueCache cache_;
  model::RopeTables rope_;
};

}  // namespace lora_train::generate
