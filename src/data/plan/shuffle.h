// A random order of n things as a pure function of a Philox key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lora_train/base/philox.h"

namespace lora_train::data {

/// 0..n-1 shuffled by Fisher-Yates; swap i draws the numbers of counter i in the given stream of the key. n below 2^32.
std::vector<std::uint32_t> shuffled(std::size_t n, PhiloxKey key, std::uint32_t stream = 0);

}  // namespace lora_train::data
