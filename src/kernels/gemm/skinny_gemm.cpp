#include "lora_train/kernels/gemm/skinny_gemm.h"

#include "dispatch/checks.h"
#include "dispatch/cpu_arguments.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "skinny_gemm_cpu.h"

namespace lora_train::kernels {
namespace {

template <class X, class W, class Y>
void run_on_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                at::Tensor& y, double alpha) {
  skinny_gemm_cpu(SkinnyGemm<X, W, Y>{read_rows<X>(x), read_rows<W>(weight), read<Y>(bias), read_rows<Y>(residual),
                                      write_rows<Y>(y), static_cast<float>(alpha), x.size(0), weight.size(0),
                                      x.size(1)});
}

void check_arguments(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                     const at::Tensor& y) {
  constexpr auto kName = "skinny_gemm";
  check_rows(kName, "x", x, {-1, -1});
  check_floating(kName, "x", x);
  check_rows(kName, "weight", weight, {-1, x.size(1)});
  if (!is_widened(weight, x)) check_dtype(kName, "weight", weight, x.scalar_type());
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
  if (!is_ours) {
    const bool adds = residual.defined() && residual.is_same(y);
    return gemm(x, weight.to(x.scalar_type()).t(), y,
                {.bias = bias, .residual = adds ? at::Tensor() : residual, .accumulate = adds, .alpha = alpha});
  }
  if (is_widened(weight, x)) return run_on_cpu<float, Bf16, float>(x, weight, bias, residual, y, alpha);
  if (x.scalar_type() == at::kFloat) return run_on_cpu<float, float, float>(x, weight, bias, residual, y, alpha);
  if (y.scalar_type() == at::kFloat) return run_on_cpu<Bf16, Bf16, float>(x, weight, bias, residual, y, alpha);
  run_on_cpu<Bf16, Bf16, Bf16>(x, weight, bias, residual, y, alpha);
}

bool skinny_gemm_is_faster(at::Device device, at::ScalarType dtype) {
  return device.is_cpu() && dtype == at::kBFloat16 && kernel_setting(KernelName::kGemm) != KernelSetting::kReference &&
         !has_bf16_gemm();
}

}  // namespace lora_train::kernels
