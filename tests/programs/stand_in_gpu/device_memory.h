// The memory of a GPU that is larger than that of the host: zeros, which take none until they are written. Thread-safe.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

class DeviceMemory {
 public:
  /// Null if the device has no room for it.
  void* allocate(std::size_t bytes, std::size_t capacity) {
    const std::lock_guard lock(mutex_);
    if (used_ + bytes > capacity) return nullptr;
    void* const memory = map(bytes);
    if (memory == nullptr) return nullptr;
    used_ += bytes;
    blocks_[memory] = bytes;
    return memory;
  }
  void release(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(memory);
    if (block == blocks_.end()) return;
    used_ -= block->second;
    ::munmap(memory, rounded(block->second));
    blocks_.erase(block);
  }
  std::size_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  /// Zeros of `bytes`, never given back.
  static void* map(std::size_t bytes) {
    void* const memory =
        ::mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  }
  /// Whole pages of zeros are given back to the host.
  static void fill(void* memory, int value, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + bytes;
    const std::uintptr_t first = rounded(begin), last = end / kPage * kPage;
    if (value != 0 || bytes < kLarge || ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
      std::memset(memory, value, bytes);
      return;
    }
    std::memset(memory, 0, first - begin);
    std::memset(reinterpret_cast<void*>(last), 0, end - last);
  }

 private:
  static constexpr std::size_t kPage = 4096, kLarge = std::size_t{1} << 24;
  static std::size_t rounded(std::size_t bytes) { return bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage; }

  std::mutex mutex_;
  std::map<void*, std::size_t> blocks_;
  std::size_t used_ = 0;
};

/// Page-locked memory, never given back.
class PageLocked {
 public:
  void add(const void* memory, std::size_t bytes) {
    if (const std::size_t index = count_; index < ranges_.size()) {
      ranges_[index] = {static_cast<const char*>(memory), bytes};
      ++count_;
    }
  }
  bool has(const void* memory) const {
    const auto* const at = static_cast<const char*>(memory);
    for (std::size_t i = 0; i < count_ && i < ranges_.size(); ++i) {
      if (at >= ranges_[i].begin && at < ranges_[i].begin + ranges_[i].bytes) return true;
    }
    return false;
  }

 private:
  struct Range {
    const char* begin = nullptr;
    std::size_t bytes = 0;
  };
  std::array<Range, 4096> ranges_;
  std::atomic<std::size_t> count_ = 0;
};
