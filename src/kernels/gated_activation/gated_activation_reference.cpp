#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"

namespace lora_train::kernels {

void gated_activation_forward_reference(const at::Tensor& gate_up, at::Tensor& y, Activation activation) {
  const auto parts = to_math(gate_up).chunk(2, -1);
  y.copy_((activation == Activation::kSilu ? at::silu(parts[0]) : at::gelu(parts[0], "tanh")) * parts[1]);
}

void gated_activation_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up,
                                         Activation activation) {
  const auto parts = to_math(gate_up).chunk(2, -1);
  const auto& gate = parts[0];
  const auto& up = parts[1];
  const auto dyf = to_math(dy);
  if (activation == Activation::kGeluTanh) {
    d_gate_up.copy_(at::cat({at::gelu_backward(dyf * up, gate, "tanh"), dyf * at::gelu(gate, "tanh")}, -1));
    return;
  }
  const auto sigmoid = at::sigmoid(gate);
  const auto d_gate = dyf * up * sigmoid * (1 + gate * (1 - sigmoid));
  const auto d_up = dyf * gate * sigmoid;
  d_gate_up.copy_(at::cat({d_gate, d_up}, -1));
}

}  // namespace lora_train::kernels
