#include "lora_train/kernels/skinny_gemm.h"

#include "dispatch/checks.h"
#include "dispatch/cpu_arguments.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/implementation.h"
#include "skinny_gemm_cpu.h"

namespace lora_train::kernels {
namespace {

template <class T, class Y>
void run_on_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                at::Tensor& y, double alpha) {
  skinny_gemm_cpu(SkinnyGemm<T, Y>{read_rows<T>(x), read_rows<T>(weight), read<Y>(bias), read_rows<Y>(residual),
                                   write_rows<Y>(y), static_cast<float>(alpha), x.size(0), weight.size(0), x.size(1)});
}

void check_arguments(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                     const at::Tensor& y) {
  constexpr auto kName = "skinny_gemm";
  check_rows(kName, "x", x, {-1, -1});
  check_floating(kName, "x", x);
  check_rows(kName, "weight", weight, {-1, x.size(1)}, x.scalar_type());
  check_rows(kName, "y", y, {x.size(0), weight.size(0)});
  if (x.scalar_type() != at::kBFloat16 || y.scalar_type() != at::kFloat) check_dtype(kName, "y", y, x.scalar_type());
  if (bias.defined()) check_vector(kName, "bias", bias, weight.size(0), y.scalar_type());
  if (residual.defined()) check_rows(kName, "residual", residual, y.sizes(), y.scalar_type());
}

}  // namespace

void skinny_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                 at::Tensor& y, double alpha) {
  check_arguments(x, weight, bias, residual, y);
  const bool is_ours =
      x.is_cpu() && x.scalar_type() != at::kDouble && kernel_setting(KernelName::kGemm) != KernelSetting::kReference;
  if (!is_ours) return gemm(x, weight.t(), y, {.bias = bias, .residual = residual, .alpha = alpha});
  if (x.scalar_type() == at::kFloat) return run_on_cpu<float, float>(x, weight, bias, residual, y, alpha);
  if (y.scalar_type() == at::kFloat) return run_on_cpu<Bf16, float>(x, weight, bias, residual, y, alpha);
  run_on_cpu<Bf16, Bf16>(x, weight, bias, residual, y, alpha);
}

bool skinny_gemm_is_faster(at::Device device, at::ScalarType dtype) {
  return device.is_cpu() && dtype == at::kBFloat16 && kernel_setting(KernelName::kGemm) != KernelSetting::kReference &&
         !has_bf16_gemm();
}

}  // namespace lora_train::kernels
