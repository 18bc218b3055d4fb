// Host memory in place of a GPU's, and which of it is page-locked.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>

namespace stand_in {

// Never destroyed: calls come until the process ends.
inline auto& allocations = *new std::map<void*, std::size_t>;
inline auto& allocations_mutex = *new std::mutex;

/// Zeros. Pages that nothing touches take no memory, so that buffers may be as large as those of a GPU.
inline void* host_memory(std::size_t bytes) {
  constexpr int kProtection = PROT_READ | PROT_WRITE, kKind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const memory = ::mmap(nullptr, bytes == 0 ? 1 : bytes, kProtection, kKind, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  const std::lock_guard lock(allocations_mutex);
  allocations[memory] = bytes == 0 ? 1 : bytes;
  return memory;
}
inline void free_host_memory(void* memory) {
  const std::lock_guard lock(allocations_mutex);
  if (const auto allocation = allocations.extract(memory)) ::munmap(memory, allocation.mapped());
}
/// Page-locked memory, never given back.
struct HostRange {
  const char* begin = nullptr;
  std::size_t bytes = 0;
};
inline std::array<HostRange, 4096> host_ranges;
inline std::atomic<std::size_t> num_host_ranges = 0;

inline void note_page_locked(const void* memory, std::size_t bytes) {
  if (const std::size_t index = num_host_ranges; index < host_ranges.size()) {
    host_ranges[index] = {static_cast<const char*>(memory), bytes};
    ++num_host_ranges;
  }
}
inline bool is_page_locked(const void* memory) {
  const auto* const at = static_cast<const char*>(memory);
  for (std::size_t i = 0; i < num_host_ranges && i < host_ranges.size(); ++i) {
    if (at >= host_ranges[i].begin && at < host_ranges[i].begin + host_ranges[i].bytes) return true;
  }
  return false;
}

}  // namespace stand_in
