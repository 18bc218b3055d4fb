// Which code computes a kernel: ours for the device, or the reference. Settings of the process, made before the first
// kernel runs; not thread-safe.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
}

namespace lora_train::kernels {

struct OwnKernels;

/// The kernels that profile key `kernels` chooses for, by these names.
enum class KernelName {
  kRmsNorm,
  kRope,  ///< with the norm of q and k heads
  kSwiglu,
  kEmbedding,
  kCrossEntropy,
  kLora,
  kDropout,
  kAdamw,  ///< with the gradient norm
  kCast,
};
constexpr std::array<std::string_view, 9> kKernelNames = {"rms_norm",      "rope", "swiglu",  "embedding",
                                                          "cross_entropy", "lora", "dropout", "adamw",
                                                          "cast"};

enum class KernelSetting {
  kAuto,       ///< ours where there is one for device and dtype, else the reference
  kReference,  ///< the reference, on every device
  kOwn         ///< ours; DeviceError where there is none
};
void set_kernel_setting(KernelName kernel, KernelSetting setting);
void set_all_kernel_settings(KernelSetting setting);

/// Our CUDA kernels, from now on. `stream` gives the stream that they run in. Tests pass kernels compiled for the CPU and
/// `on_cpu_tensors`: then CPU tensors take them too. null takes them away.
struct OwnKernelsInUse {
  const OwnKernels* table = nullptr;
  void* (*stream)() = nullptr;
  bool on_cpu_tensors = false;
};
void use_own_kernels(const OwnKernelsInUse& kernels);

enum class Implementation { kReference, kCpu, kCuda };
/// What computes `kernel` on tensors like this one: by device, dtype (ours take fp32 and bf16) and setting.
Implementation implementation_for(KernelName kernel, const at::Tensor& t);

}  // namespace lora_train::kernels
