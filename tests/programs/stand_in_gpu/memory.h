// Device memory: the host's.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>

/// Zeros.
inline void* host_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096, kMapped = std::size_t{32} << 20;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (rounded < kMapped)
    std::memset(memory, 0, rounded);  // larger blocks are new pages, which exist once they are touched
  return memory;
}

/// Whether STAND_IN_OOM_AT, "first" or "first:last", names the n-th allocation.
inline bool is_out_of_memory(long n) {
  const char* const range = std::getenv("STAND_IN_OOM_AT");
  if (range == nullptr) return false;
  const char* const colon = std::strchr(range, ':');
  return n >= std::atol(range) && n <= (colon != nullptr ? std::atol(colon + 1) : LONG_MAX);
}
