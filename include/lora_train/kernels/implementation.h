// Which code computes a kernel: ours for the device, or the reference. Settings of the process, made before the first
// kernel runs; not thread-safe.
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

struct OwnKernels;

enum class KernelSetting {
  kAuto,       ///< ours where there is one for device and dtype, else the reference
  kReference,  ///< the reference, on every device
  kOwn         ///< ours; DeviceError where there is none
};
void set_kernel_setting(KernelName kernel, KernelSetting setting);
void set_all_kernel_settings(KernelSetting setting);
KernelSetting kernel_setting(KernelName kernel);

/// Our CUDA kernels, from now on. `stream` gives the stream that they run in. Tests pass kernels compiled for the CPU and
/// `on_cpu_tensors`: then CPU tensors take them too. null takes them away.
struct OwnKernelsInUse {
  const OwnKernels* table = nullptr;
  void* (*stream)() = nullptr;
  bool on_cpu_tensors = false;
};
void use_own_kernels(const OwnKernelsInUse& kernels);

/// Memory for partial sums of our CUDA kernels on `device`: one buffer that all of them take in turn (stream order keeps
/// them apart). A kernel that finds less than it needs makes more, which no step should come to: reserve
/// kWorkspaceElements before the first one, outside of a graph capture.
constexpr std::int64_t kWorkspaceElements = 16 * 1024 * 1024;
void reserve_own_workspace(std::int64_t num_elements, const c10::Device& device);

enum class Implementation { kReference, kCpu, kCuda };
/// What computes `kernel` on tensors like this one: by device, dtype (ours take fp32 and bf16) and setting.
Implementation implementation_for(KernelName kernel, const at::Tensor& t);

/// Whether our CUDA kernels compute where this tensor lies, whatever its dtype.
bool is_own_place(KernelName kernel, const at::Tensor& t);

}  // namespace lora_train::kernels
