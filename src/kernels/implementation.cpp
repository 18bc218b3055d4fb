#include "lora_train/kernels/implementation.h"

#include <ATen/core/Tensor.h>

#include "lora_train/base/error.h"
#include "own_arguments.h"

namespace lora_train::kernels {
namespace {

std::array<KernelSetting, kKernelNames.size()> settings{};
OwnKernelsInUse in_use;

bool is_taken_by_own(const at::Tensor& t) {
  return in_use.table != nullptr && (t.is_cuda() || (in_use.on_cpu_tensors && t.is_cpu()));
}

}  // namespace

void set_kernel_setting(KernelName kernel, KernelSetting setting) { settings[static_cast<std::size_t>(kernel)] = setting; }

void set_all_kernel_settings(KernelSetting setting) { settings.fill(setting); }

void use_own_kernels(const OwnKernelsInUse& kernels) { in_use = kernels; }

const OwnKernels& own_kernels() { return *in_use.table; }

Stream own_stream() { return in_use.stream != nullptr ? in_use.stream() : nullptr; }

Implementation implementation_for(KernelName kernel, const at::Tensor& t) {
  const KernelSetting setting = settings[static_cast<std::size_t>(kernel)];
  if (setting == KernelSetting::kReference) return Implementation::kReference;
  if (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16) {
    if (is_taken_by_own(t)) return Implementation::kCuda;
    if (t.is_cpu()) return Implementation::kCpu;
  }
  if (setting == KernelSetting::kOwn) {
    throw DeviceError("kernels: own", "there is no own kernel " +
                                          std::string(kKernelNames[static_cast<std::size_t>(kernel)]) + " for " +
                                          c10::toString(t.scalar_type()) + " on " + t.device().str() +
                                          "; use kernels: auto");
  }
  return Implementation::kReference;
}

}  // namespace lora_train::kernels
