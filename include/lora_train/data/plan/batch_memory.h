// Host memory for micro-batches. plan/setup/batch_feed copies what goes to a GPU into page-locked memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lora_train::data {

/// Where memory comes from. Thread-safe.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  /// `bytes` > 0 of uninitialised memory, aligned to 64. May throw anything; a BatchPrefetcher passes it on.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
};

/// Ordinary memory. Lives as long as the program.
HostMemory& pageable_memory();

/// A buffer of int32 values that grows on demand and never shrinks. Not thread-safe.
class HostBuffer {
 public:
  /// `memory` outlives the buffer.
  explicit HostBuffer(HostMemory& memory = pageable_memory()) : values_(nullptr, Release{&memory}) {}

  /// Room for `count` values, uninitialised. Invalidates what it returned before.
  std::span<std::int32_t> resize(std::size_t count);

 private:
  struct Release {
    HostMemory* memory;
    void operator()(std::int32_t* values) const noexcept { memory->release(values); }
  };

  std::unique_ptr<std::int32_t[], Release> values_;
  std::size_t capacity_ = 0;  ///< of values_, unless they were moved away
};

}  // namespace lora_train::data
