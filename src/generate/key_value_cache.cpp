#include "key_value_cache.h"

#include <ATen/ops/empty.h>

namespace lora_train::generate {

KeyValueCache::KeyValueCache(const model::ModelConfig& config, std::int64_t num_tokens,
                             const at::TensorOptions& options)
    : capacity(num_tokens) {
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    keys.push_back(at::empty({capacity, config.num_kv_heads, config.head_dim}, options));
    values.push_back(at::empty({capacity, config.num_kv_heads, config.head_dim}, options));
  }
}

std::int64_t KeyValueCache::bytes() const {
  std::int64_t sum = 0;
  for (const auto* list : {&keys, &values}) {
    for (const at::Tensor& t : *list) sum += static_cast<std::int64_t>(t.nbytes());
  }
  return sum;
}

std::int64_t room_for(std::int64_t num_tokens) {
  constexpr std::int64_t kBlock = 16;
  return (num_tokens + kBlock - 1) / kBlock * kBlock;
}

std::optional<std::int64_t> CacheAllocator::allocate(std::int64_t num_tokens) {
  const std::int64_t wanted = room_for(num_tokens);
  std::int64_t begin = 0;
  for (const auto& [taken_begin, taken_end] : taken_) {
    if (taken_begin - begin >= wanted) break;
    begin = taken_end;
  }
  if (begin + wanted > capacity_) return std::nullopt;
  taken_[begin] = begin + wanted;
  return begin;
}

void CacheAllocator::free(std::int64_t begin) { taken_.erase(begin); }

}  // namespace lora_train::generate
