#include <ATen/ATen.h>

#include "checks.h"
#include "lora_train/kernels/lora.h"

namespace lora_train::kernels {

void lora_grad_b_reference(const at::Tensor& dy, const at::Tensor& s, double scale, at::Tensor& grad_b) {
  grad_b.add_(at::mm(to_math(dy).t(), to_math(s)), scale);
}

void lora_grad_a_reference(const at::Tensor& ds, const at::Tensor& x, at::Tensor& grad_a) {
  grad_a.add_(at::mm(to_math(ds).t(), to_math(x)));
}

}  // namespace lora_train::kernels
