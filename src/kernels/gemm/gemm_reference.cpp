#include <ATen/ATen.h>

#include "lora_train/kernels/gemm/gemm.h"

namespace lora_train::kernels {
namespace {

// y of another dtype than a and b: the product is rounded to theirs first.
void gemm_mixed(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  const at::Tensor product = at::mm(a, b);
  if (extras.accumulate) {
    y.add_(product, extras.alpha);
  } else if (extras.residual.defined()) {
    at::add_out(y, extras.residual, product, extras.alpha);
  } else {
    y.copy_(product);
    if (extras.alpha != 1) y.mul_(extras.alpha);
  }
  if (extras.bias.defined()) y.add_(extras.bias);
}

}  // namespace

void gemm_reference(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  if (a.scalar_type() != y.scalar_type()) return gemm_mixed(a, b, y, extras);
  if (extras.accumulate || extras.residual.defined()) {
    at::addmm_out(y, extras.accumulate ? y : extras.residual, a, b, 1, extras.alpha);
    if (extras.bias.defined()) y.add_(extras.bias);
  } else if (extras.bias.defined()) {
    at::addmm_out(y, extras.bias, a, b, 1, extras.alpha);
  } else if (extras.alpha != 1) {
    at::addmm_out(y, y, a, b, 0, extras.alpha);
  } else {
    at::mm_out(y, a, b);
  }
}

}  // namespace lora_train::kernels
