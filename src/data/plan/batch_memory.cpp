#include "lora_train/data/plan/batch_memory.h"

#include <new>

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

std::span<std::int32_t> HostBuffer::resize(std::size_t count) {
  if (count > (values_ == nullptr ? 0 : capacity_)) {
    values_.reset();
    // Micro-batches differ little in size: with a quarter more, a buffer soon stops growing.
    const std::size_t capacity = count + count / 4;
    values_.reset(static_cast<std::int32_t*>(values_.get_deleter().memory->allocate(capacity * sizeof(std::int32_t))));
    capacity_ = capacity;
  }
  return {values_.get(), count};
}

}  // namespace lora_train::data
