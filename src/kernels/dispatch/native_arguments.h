// Turns tensors into the arguments of native kernels, on a CPU and on a GPU.
#pragma once

#include "cpu_arguments.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "native_kernels.h"

namespace lora_train::kernels {

/// The kernel table in use. Call only after implementation_for returned kCuda.
const NativeKernels& native_kernels();
Stream native_stream();

/// `num_elements` uninitialised floats on the device of the kernels in use, aligned to 16 bytes. All kernels share the buffer
/// (reserve_native_workspace).
float* native_workspace(std::int64_t num_elements);

template <class T>
const NativeKernelsOf<T>& native_kernels_of() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return native_kernels().f32;
  } else {
    return native_kernels().bf16;
  }
}

}  // namespace lora_train::kernels
