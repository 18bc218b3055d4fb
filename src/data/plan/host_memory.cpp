#include "lora_train/data/host_memory.h"

#include <new>
#include <utility>

namespace lora_train::data {
namespace {

constexpr std::align_val_t kAlignment{64};

class PageableMemory : public HostMemory {
 public:
  void* allocate(std::size_t bytes) override { return ::operator new(bytes, kAlignment); }
  void release(void* memory) noexcept override { ::operator delete(memory, kAlignment); }
};

}  // namespace

HostMemory& pageable_memory() {
  static PageableMemory memory;
  return memory;
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : memory_(other.memory_),
      values_(std::exchange(other.values_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(values_, other.values_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void HostBuffer::free() noexcept {
  if (values_ != nullptr) {
    memory_->release(values_);
  }
  values_ = nullptr;
  capacity_ = 0;
}

std::span<std::int32_t> HostBuffer::resize(std::size_t count) {
  if (count > capacity_) {
    free();
    // Micro-batches differ little in size: with a quarter more, a buffer soon stops growing.
    const std::size_t capacity = count + count / 4;
    values_ = static_cast<std::int32_t*>(memory_->allocate(capacity * sizeof(std::int32_t)));
    capacity_ = capacity;
  }
  return {values_, count};
}

}  // namespace lora_train::data
