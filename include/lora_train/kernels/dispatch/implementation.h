// Selects the implementation of a kernel: native code for the device, or the reference. Process-wide settings, made
// before the first kernel runs; not thread-safe.
#pragma once

#include <cstdint>

#include "lora_train/base/kernel_names.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lora_train::kernels {

struct NativeKernels;

void set_kernel_setting(KernelName kernel, KernelSetting setting);
void set_all_kernel_settings(KernelSetting setting);
KernelSetting kernel_setting(KernelName kernel);

/// The native CUDA kernels to use. `stream` returns the stream that they run on. Tests pass kernels compiled for the
/// CPU and set `on_cpu_tensors`, so that CPU tensors use them.
struct NativeKernelsInUse {
  const NativeKernels* table = nullptr;
  void* (*stream)() = nullptr;
  bool on_cpu_tensors = false;
};
/// Sets them; a null table removes them.
void use_native_kernels(const NativeKernelsInUse& kernels);

/// Reserves the workspace of the native CUDA kernels on `device`: one buffer for the partial sums of all kernels, kept
/// apart by stream order. A kernel that needs more grows it, which must not happen in a step: reserve
/// kWorkspaceElements before the first step, outside a graph capture.
constexpr std::int64_t kWorkspaceElements = 16 * 1024 * 1024;
/// The largest rank for which one native CUDA kernel computes dS and dB (lora_grad_s_and_b); more do not fit the
/// registers.
constexpr std::int64_t kMaxRanksWithDs = 32;
void reserve_native_workspace(std::int64_t num_elements, const c10::Device& device);

enum class Implementation { kReference, kCpu, kCuda };
/// The implementation of `kernel` for tensors like t, by device, dtype (native kernels take fp32 and bf16) and setting.
Implementation implementation_for(KernelName kernel, const at::Tensor& t);

/// True when a native CUDA kernel is in use on the device of t, whatever its dtype.
bool has_native_kernel(KernelName kernel, const at::Tensor& t);

}  // namespace lora_train::kernels
