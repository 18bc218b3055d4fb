// Gated activation: y = act(gate) * up; SwiGLU with silu, GeGLU with gelu_tanh, the gate on the output of Qwen3.5's
// attention with sigmoid. N tokens, F features. No torch. Source: arXiv 2002.05202; gelu_tanh as
// torch.nn.GELU(approximate="tanh"); transformers modeling_qwen3_5.py (Qwen3_5Attention).
#pragma once

namespace at {
class Tensor;
}

namespace lora_train::kernels {

enum class Activation {
  kSilu,      ///< x sigmoid(x): SwiGLU
  kGeluTanh,  ///< GELU in its tanh approximation (transformers' "gelu_pytorch_tanh"): GeGLU
  kSigmoid,   ///< sigmoid(x), rounded to the dtype of x before the product, as in transformers
};

/// gate, up and y [N, F] of one dtype, fp32, bf16 or fp64; rows may be strided; y may be gate or up. Computes in fp32
/// (fp64) and rounds y once.
void gated_activation_forward(const at::Tensor& gate, const at::Tensor& up, at::Tensor& y,
                              Activation activation = Activation::kSilu);

/// dy, d_gate and d_up [N, F] like gate; each gradient may be dy, gate or up. d_up has the rounded sigmoid, d_gate the
/// exact one.
void gated_activation_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, at::Tensor& d_gate,
                               at::Tensor& d_up, Activation activation = Activation::kSilu);

/// The same in plain ATen code, on any device.
decltype(gated_activation_forward) gated_activation_forward_reference;
decltype(gated_activation_backward) gated_activation_backward_reference;

}  // namespace lora_train::kernels
