#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/lora/lora.h"

namespace lora_train::kernels {

void lora_grad_b_reference(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts) {
  for (const LoraPart& part : parts) {
    const at::Tensor dy_part = to_math(dy.narrow(1, part.out_begin, part.out_end - part.out_begin));
    part.grad.add_(at::mm(dy_part.t(), to_math(s.narrow(1, part.column, part.rank))), part.scale);
  }
}

void lora_grad_a_reference(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts) {
  for (const LoraPart& part : parts) {
    part.grad.add_(at::mm(to_math(ds.narrow(1, part.column, part.rank)).t(), to_math(x)), part.scale);
  }
}

void lora_grad_s_and_b_reference(const at::Tensor& dy, const at::Tensor& scaled_b, const at::Tensor& s, at::Tensor& ds,
                                 const std::vector<LoraPart>& parts) {
  gemm_reference(dy, scaled_b, ds);
  lora_grad_b_reference(dy, s, parts);
}

}  // namespace lora_train::kernels
