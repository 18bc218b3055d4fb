// Activation functions of gated MLPs. No torch.
#pragma once

namespace lora_train::kernels {

enum class Activation {
  kSilu,      ///< x sigmoid(x): SwiGLU
  kGeluTanh,  ///< GELU in its tanh approximation (transformers' "gelu_pytorch_tanh"): GeGLU
};

}  // namespace lora_train::kernels
