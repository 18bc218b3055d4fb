// The part of launch.h that kernel headers need, so that callers include neither CUDA nor on_cpu.h.
#pragma once

namespace lora_train::kernels {

/// A cudaStream_t; null on the CPU.
using Stream = void*;

}  // namespace lora_train::kernels
