// From tensors to what our own kernels take, on a CPU and on a GPU.
#pragma once

#include "cpu_arguments.h"
#include "lora_train/kernels/implementation.h"
#include "own_kernels.h"

namespace lora_train::kernels {

/// The table in use; only where implementation_for said kCuda.
const OwnKernels& own_kernels();
Stream own_stream();

/// num_elements of memory on the device of the kernels in use, aligned to 16 bytes, its content undefined; the next kernel
/// that asks gets the same (reserve_own_workspace).
float* own_workspace(std::int64_t num_elements);

template <class T>
const OwnKernelsOf<T>& own_kernels_of() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return own_kernels().f32;
  } else {
    return own_kernels().bf16;
  }
}

}  // namespace lora_train::kernels
