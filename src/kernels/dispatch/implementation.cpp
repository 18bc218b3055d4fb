#include "lora_train/kernels/dispatch/implementation.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <sstream>
#include <vector>

#include "arguments.h"
#include "lora_train/base/error.h"

namespace lora_train::kernels {
namespace {

std::array<KernelSetting, kKernelNames.size()> settings{};
NativeKernelsInUse in_use;

bool runs_natively(const at::Tensor& t) {
  return in_use.table != nullptr && (t.is_cuda() || (in_use.on_cpu_tensors && t.is_cpu()));
}

at::Tensor& workspace_on(const at::Device& device) {
  static auto& all = *new std::vector<at::Tensor>;  // never freed: at exit, CUDA may be gone first
  for (at::Tensor& workspace : all) {
    if (workspace.device() == device) return workspace;
  }
  return all.emplace_back(at::empty({0}, at::device(device).dtype(at::kFloat)));
}

at::Device device_in_use() {
  if (in_use.on_cpu_tensors) return at::kCPU;
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getDevice();
}

[[noreturn]] void fail(const char* kernel, const char* name, const at::Tensor& t, const std::string& expected) {
  std::ostringstream is;
  if (t.defined()) {
    is << "is " << t.scalar_type() << " " << t.sizes() << " with strides " << t.strides();
  } else {
    is << "is undefined";
  }
  throw ShapeError(fmt::format("{}: {}", kernel, name), "{}, expected {}", is.str(), expected);
}

}  // namespace

void check_shape(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
  bool ok = t.defined() && t.dim() == static_cast<int64_t>(sizes.size());
  for (std::size_t i = 0; ok && i < sizes.size(); ++i) ok = sizes[i] < 0 || t.size(static_cast<int64_t>(i)) == sizes[i];
  if (!ok) {
    std::ostringstream expected;
    expected << "shape " << sizes << " (-1 = any)";
    fail(kernel, name, t, expected.str());
  }
}

void check_rows(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
  check_shape(kernel, name, t, sizes);
  int64_t stride = 1;
  for (int64_t d = t.dim() - 1; d >= 1; --d) {
    if (t.size(d) > 1 && t.stride(d) != stride) fail(kernel, name, t, "contiguous rows");
    stride *= t.size(d);
  }
}

void check_rows(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes,
                at::ScalarType dtype) {
  check_rows(kernel, name, t, sizes);
  check_dtype(kernel, name, t, dtype);
}

void check_vector(const char* kernel, const char* name, const at::Tensor& t, int64_t size, at::ScalarType dtype) {
  check_rows(kernel, name, t, {size}, dtype);
  check_contiguous(kernel, name, t);
}

void check_dtype(const char* kernel, const char* name, const at::Tensor& t, at::ScalarType dtype) {
  if (!t.defined() || t.scalar_type() != dtype) fail(kernel, name, t, std::string("dtype ") + c10::toString(dtype));
}

void check_floating(const char* kernel, const char* name, const at::Tensor& t) {
  const bool ok = t.defined() &&
                  (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kDouble);
  if (!ok) fail(kernel, name, t, "fp32, bf16 or fp64");
}

void check_floating(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
  check_rows(kernel, name, t, sizes);
  check_floating(kernel, name, t);
}

void check_like(const char* kernel, const at::Tensor& x, std::initializer_list<NamedTensor> tensors) {
  for (const auto& [name, tensor] : tensors) check_rows(kernel, name, tensor, x.sizes(), x.scalar_type());
}

void check_contiguous(const char* kernel, const char* name, const at::Tensor& t) {
  if (!t.is_contiguous()) fail(kernel, name, t, "contiguous memory");
}

void check_lengths(const char* kernel, const char* name, const std::vector<int64_t>& cu_seqlens, int64_t num_tokens) {
  bool ok = !cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() <= num_tokens;
  for (std::size_t d = 1; ok && d < cu_seqlens.size(); ++d) ok = cu_seqlens[d - 1] <= cu_seqlens[d];
  if (!ok) {
    throw ShapeError(fmt::format("{}: {}", kernel, name), "must start with 0, never decrease and stay within {} tokens",
                     num_tokens);
  }
}

void set_kernel_setting(KernelName kernel, KernelSetting setting) {
  settings[static_cast<std::size_t>(kernel)] = setting;
}

void set_all_kernel_settings(KernelSetting setting) { settings.fill(setting); }

KernelSetting kernel_setting(KernelName kernel) { return settings[static_cast<std::size_t>(kernel)]; }

void use_native_kernels(const NativeKernelsInUse& kernels) { in_use = kernels; }

const NativeKernels& native_kernels() { return *in_use.table; }

Stream native_stream() { return in_use.stream != nullptr ? in_use.stream() : nullptr; }

void reserve_native_workspace(std::int64_t num_elements, const c10::Device& device) {
  at::Tensor& workspace = workspace_on(device);
  if (workspace.numel() < num_elements) workspace = at::empty({num_elements}, workspace.options());
}

float* native_workspace(std::int64_t num_elements) {
  const at::Device device = device_in_use();
  reserve_native_workspace(num_elements, device);
  return workspace_on(device).mutable_data_ptr<float>();
}

bool has_native_kernel(KernelName kernel, const at::Tensor& t) {
  return settings[static_cast<std::size_t>(kernel)] != KernelSetting::kReference && runs_natively(t);
}

Implementation implementation_for(KernelName kernel, const at::Tensor& t) {
  const KernelSetting setting = settings[static_cast<std::size_t>(kernel)];
  if (setting == KernelSetting::kReference) return Implementation::kReference;
  if (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16) {
    if (runs_natively(t)) return Implementation::kCuda;
    if (t.is_cpu()) return Implementation::kCpu;
  }
  if (setting == KernelSetting::kNative) {
    throw DeviceError("kernels: own", "there is no native kernel {} for {} on {}; use kernels: auto",
                      kKernelNames[static_cast<std::size_t>(kernel)], c10::toString(t.scalar_type()), t.device().str());
  }
  return Implementation::kReference;
}

}  // namespace lora_train::kernels
