// Gated activation: y = act(gate) * up; SwiGLU with silu, GeGLU with gelu_tanh. N tokens, F features. No torch.
// Source: arXiv 2002.05202; gelu_tanh as torch.nn.GELU(approximate="tanh").
#pragma once

namespace at {
class Tensor;
}

namespace lora_train::kernels {

enum class Activation {
  kSilu,      ///< x sigmoid(x): SwiGLU
  kGeluTanh,  ///< GELU in its tanh approximation (transformers' "gelu_pytorch_tanh"): GeGLU
};

/// gate_up [N, 2F], gate first; y [N, F]; rows may be strided. fp32, bf16 or fp64; computes in fp32 (fp64) and rounds
/// y once.
void gated_activation_forward(const at::Tensor& gate_up, at::Tensor& y, Activation activation = Activation::kSilu);

/// Writes d_gate_up [N, 2F], which may be gate_up itself. dy [N, F], rows may be strided.
void gated_activation_backward(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up,
                               Activation activation = Activation::kSilu);

void gated_activation_forward_reference(const at::Tensor& gate_up, at::Tensor& y,
                                        Activation activation = Activation::kSilu);
void gated_activation_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up,
                                         Activation activation = Activation::kSilu);

}  // namespace lora_train::kernels
