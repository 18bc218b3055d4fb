// The key-value cache, and the allocation of ranges in it. K kv heads, E head size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <map>
#include <optional>
#include <vector>

#include "lora_train/model/families/model_config.h"

namespace lora_train::generate {

/// Room for `capacity` tokens in every layer.
struct KeyValueCache {
  KeyValueCache() = default;
  KeyValueCache(const model::ModelConfig& config, std::int64_t capacity, const at::TensorOptions& options);

  std::vector<at::Tensor> keys, values;  ///< per layer [capacity, K, E]
  std::int64_t capacity = 0;
  std::int64_t bytes() const;
};

/// Cache slots for a sequence of this length: whole blocks of 16, so that its first token has the same alignment wherever it
/// lies, and its sums the same bits.
std::int64_t room_for(std::int64_t num_tokens);

/// A first-fit allocator of ranges of a cache.
class CacheAllocator {
 public:
  explicit CacheAllocator(std::int64_t capacity) : capacity_(capacity) {}
  /// Allocates room_for(num_tokens) slots and returns the first one, or nothing if no free range is long enough.
  std::optional<std::int64_t> allocate(std::int64_t num_tokens);
  void free(std::int64_t begin);

 private:
  std::int64_t capacity_;
  std::map<std::int64_t, std::int64_t> taken_;  ///< begin -> end
};

}  // namespace lora_train::generate
