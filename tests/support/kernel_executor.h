// Where the cases of tests/unit/native_kernels run our CUDA kernels: native_kernels_test emulates them on the CPU
// (cpu_executor.cpp), cuda_kernels_test launches them on a GPU (cuda_executor.cpp). No torch and no CUDA header here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace lora_train::testing_support {

/// Memory that host and kernels read and write, aligned to 16 bytes. Never null.
void* allocate_for_kernels(std::size_t bytes);
void free_for_kernels(void* memory);
/// Returns when every launched kernel has ended. Throws DeviceError if one failed.
void wait_for_kernels();

/// Whether threads and blocks run in descending order from here on. A GPU has an order of its own.
void set_descending_order(bool is_descending);
/// Grids launched so far; -1 on a GPU, where nothing counts them.
std::int64_t num_launches();

/// Starts the executor. Returns why it cannot run kernels; empty where it can.
std::string start_executor();

/// Elements in memory that kernels can access, in place of a std::vector.
template <class T>
class KernelArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Every byte is 0xFF.
  explicit KernelArray(std::size_t size)
      : size_(size), data_(static_cast<T*>(allocate_for_kernels(size == 0 ? sizeof(T) : size * sizeof(T)))) {
    if (size_ > 0) std::memset(static_cast<void*>(data_), 0xFF, size_ * sizeof(T));
  }
  explicit KernelArray(const std::vector<T>& values) : KernelArray(values.size()) {
    if (size_ > 0) std::memcpy(static_cast<void*>(data_), values.data(), size_ * sizeof(T));
  }
  KernelArray(std::initializer_list<T> values) : KernelArray(std::vector<T>(values)) {}
  ~KernelArray() { free_for_kernels(data_); }
  KernelArray(const KernelArray&) = delete;
  KernelArray& operator=(const KernelArray&) = delete;

  std::size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::size_t size_;
  T* data_;
};

}  // namespace lora_train::testing_support
