// Contracts in gated_norm.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

/// N rows of H heads of E elements.
struct GatedNormShape {
  std::int64_t num_tokens, num_heads, head_size;
};

/// The norm and its gate, with the roundings of transformers.
template <class T>
LORA_TRAIN_INLINE float gated(float normed, float weight, float gate, float sigmoid) {
  return rounded_to<T>(rounded_to<T>(normed) * weight) * (gate * sigmoid);
}

LORA_TRAIN_CPU_AND_CUDA(gated_norm_forward, Rows<const T> x, Rows<const T> gate, const T* weight, float eps, Rows<T> y,
                        GatedNormShape shape);

/// dweight may be null.
template <class T>
void gated_norm_backward_cpu(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, const T* weight, float eps,
                             Rows<T> dx, Rows<T> d_gate, float* dweight, GatedNormShape shape);

template <class T>
void gated_norm_backward_cuda(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, const T* weight, float eps,
                              Rows<T> dx, Rows<T> d_gate, GatedNormShape shape, Stream stream);

/// Workspace of gated_norm_weight_gradient_cuda, in floats.
constexpr std::int64_t kGatedNormChunks = 256;
constexpr std::int64_t gated_norm_workspace(std::int64_t head_size) { return kGatedNormChunks * head_size; }

/// dweight += the gradient of the weight.
template <class T>
void gated_norm_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, float eps, float* dweight,
                                     float* workspace, GatedNormShape shape, Stream stream);

}  // namespace lora_train::kernels
