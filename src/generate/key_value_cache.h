// Keys and values of the tokens so far, for sequences that come and go. K kv heads, E head size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <map>
#include <optional>
#include <vector>

#include "lora_train/model/model_config.h"

namespace lora_train::generate {

/// Room for `capacity` tokens in every layer.
struct KeyValueCache {
  KeyValueCache() = default;
  KeyValueCache(const model::ModelConfig& config, std::int64_t capacity, const at::TensorOptions& options);

  std::vector<at::Tensor> keys, values;  ///< per layer [capacity, K, E]
  std::int64_t capacity = 0;
  std::int64_t bytes() const;
};

/// Tokens that a sequence of this length takes of the cache: whole blocks of 16, so that the address of its first token is
/// aligned alike wherever it lies, and its sums have the same bits.
std::int64_t room_for(std::int64_t num_tokens);

/// Which stretches of a cache are taken: the first one that is long enough is given.
class CacheRooms {
 public:
  explicit CacheRooms(std::int64_t capacity) : capacity_(capacity) {}
  /// The first token of room_for(num_tokens) tokens; nothing where there is no such stretch.
  std::optional<std::int64_t> take(std::int64_t num_tokens);
  void give_back(std::int64_t begin);

 private:
  std::int64_t capacity_;
  std::map<std::int64_t, std::int64_t> taken_;  ///< begin -> end
};

}  // namespace lora_train::generate
