// What the headers of CUDA kernels need of launch.h: sources that only call them see neither CUDA nor on_cpu.h.
#pragma once

namespace lora_train::kernels {

/// A cudaStream_t; null on the CPU.
using Stream = void*;

}  // namespace lora_train::kernels
