// Contracts in gated_activation.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "launch/elements.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"

namespace lora_train::kernels {

// Activation functions in the form that kernels compute: act(x) = x sigmoid(argument(x)).

struct Silu {
  static LORA_TRAIN_INLINE float argument(float x) { return x; }
  static LORA_TRAIN_INLINE float argument_slope(float) { return 1.0F; }
};

/// 0.5 x (1 + tanh(z)) = x sigmoid(2z), z = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation if tanh(z) is near -1.
struct GeluTanh {
  static constexpr float kLinear = 1.5957691216F, kCubic = 0.0713548162726F;  // 2 sqrt(2 / pi), and 0.044715 times it
  static LORA_TRAIN_INLINE float argument(float x) { return x * (kLinear + kCubic * x * x); }
  static LORA_TRAIN_INLINE float argument_slope(float x) { return kLinear + 3.0F * kCubic * x * x; }
};

/// act(x) is the sigmoid itself.
struct Sigmoid {
  static LORA_TRAIN_INLINE float argument(float x) { return x; }
};
template <class Function>
constexpr bool kIsSigmoid = std::is_same_v<Function, Sigmoid>;

/// act(x), given sigmoid(argument(x)).
template <class Function, class T>
LORA_TRAIN_INLINE float activation_value(float x, float sigmoid) {
  if constexpr (kIsSigmoid<Function>) {
    return rounded_to<T>(sigmoid);
  } else {
    return x * sigmoid;
  }
}

/// From the gradient of act(x) to that of x.
template <class Function>
LORA_TRAIN_INLINE float activation_gradient(float d, float x, float sigmoid) {
  if constexpr (kIsSigmoid<Function>) {
    return d * sigmoid * (1.0F - sigmoid);
  } else {
    return d * (sigmoid + x * sigmoid * (1.0F - sigmoid) * Function::argument_slope(x));
  }
}

/// Calls run() with the function.
template <class Run>
void with_activation(Activation activation, const Run& run) {
  if (activation == Activation::kSigmoid) return run(Sigmoid());
  activation == Activation::kSilu ? run(Silu()) : run(GeluTanh());
}

LORA_TRAIN_CPU_AND_CUDA(gated_activation_forward, Rows<const T> gate, Rows<const T> up, Rows<T> y,
                        std::int64_t num_rows, std::int64_t F, Activation activation);

LORA_TRAIN_CPU_AND_CUDA(gated_activation_backward, Rows<const T> dy, Rows<const T> gate, Rows<const T> up,
                        Rows<T> d_gate, Rows<T> d_up, std::int64_t num_rows, std::int64_t F, Activation activation);

}  // namespace lora_train::kernels
