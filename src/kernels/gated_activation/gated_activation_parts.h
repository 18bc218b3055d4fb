// Contracts in gated_activation.h; T is float or Bf16. Rows of gate_up hold F gate values, then F up values. On a GPU
// in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

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

/// act'(x), given sigmoid(argument(x)) and act(x).
template <class Function>
LORA_TRAIN_INLINE float activation_slope(float x, float sigmoid, float value) {
  return sigmoid + value * (1.0F - sigmoid) * Function::argument_slope(x);
}

/// Calls run(Silu()) or run(GeluTanh()).
template <class Run>
void with_activation(Activation activation, const Run& run) {
  activation == Activation::kSilu ? run(Silu()) : run(GeluTanh());
}

template <class T>
void gated_activation_forward_cpu(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                                  Activation activation);

/// d_gate_up may be gate_up.
template <class T>
void gated_activation_backward_cpu(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                   std::int64_t F, Activation activation);

template <class T>
void gated_activation_forward_cuda(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                                   Activation activation, Stream stream);

template <class T>
void gated_activation_backward_cuda(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                    std::int64_t F, Activation activation, Stream stream);

}  // namespace lora_train::kernels
