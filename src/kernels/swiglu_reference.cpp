#include <ATen/ATen.h>

#include "checks.h"
#include "lora_train/kernels/swiglu.h"

namespace lora_train::kernels {

void swiglu_forward_reference(const at::Tensor& gate_up, at::Tensor& y) {
  const auto parts = to_math(gate_up).chunk(2, -1);
  y.copy_(at::silu(parts[0]) * parts[1]);
}

void swiglu_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up) {
  const auto parts = to_math(gate_up).chunk(2, -1);
  const auto& gate = parts[0];
  const auto& up = parts[1];
  const auto dyf = to_math(dy);
  const auto sigmoid = at::sigmoid(gate);
  const auto d_gate = dyf * up * sigmoid * (1 + gate * (1 - sigmoid));
  const auto d_up = dyf * gate * sigmoid;
  d_gate_up.copy_(at::cat({d_gate, d_up}, -1));
}

}  // namespace lora_train::kernels
