#include "lora_train/base/philox.h"

#include "lora_train/base/hash.h"

namespace lora_train {

PhiloxKey philox_key(std::uint64_t seed, RandomPurpose purpose, std::string_view name, std::uint64_t step) {
  const std::uint64_t parts[3] = {seed, static_cast<std::uint64_t>(purpose), step};
  const std::uint64_t head = hash64({reinterpret_cast<const char*>(parts), sizeof parts});
  const std::uint64_t key = hash64(name, head);
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

}  // namespace lora_train
