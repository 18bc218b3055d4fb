// Activations of gated MLPs. No torch here.
#pragma once

namespace lora_train::kernels {

enum class Activation {
  kSilu,      ///< x sigmoid(x): SwiGLU
  kGeluTanh,  ///< GELU by its tanh approximation ("gelu_pytorch_tanh" of transformers): GeGLU
};

}  // namespace lora_train::kernels
