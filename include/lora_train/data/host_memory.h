// Host memory that micro-batches lie in. What goes to a GPU is copied to page-locked memory by runtime/batch_feed.
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
  /// `bytes` > 0 of memory aligned to 64, its content undefined. Throws what it likes; a Loader carries it on.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
};

/// Ordinary memory. Lives as long as the program.
HostMemory& pageable_memory();

/// int32 values in memory that grows when more are needed and is kept when fewer are. Not thread-safe.
class HostBuffer {
 public:
  /// `memory` outlives the buffer.
  explicit HostBuffer(HostMemory& memory = pageable_memory()) : values_(nullptr, Release{&memory}) {}

  /// Room for `count` values, their content undefined. Ends the validity of what it returned before.
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
