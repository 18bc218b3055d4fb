// Contracts in causal_conv.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "launch/elements.h"
#include "launch/sequence_ranges.h"

namespace lora_train::kernels {

constexpr int kMaxConvTaps = 8;

/// weight [C, taps].
template <class T>
struct ConvFilter {
  const T* weight;
  std::int64_t channels;
  int taps;
};

/// Calls run() with the number of taps that a kernel is compiled for, at least `taps`: Qwen3.5 has 4.
template <int kTaps>
using ConvTaps = std::integral_constant<int, kTaps>;
template <class Run>
void with_conv_taps(int taps, const Run& run) {
  taps <= 4 ? run(ConvTaps<4>()) : run(ConvTaps<kMaxConvTaps>());
}

/// A row of `state` holds [C, taps - 1].
template <class T>
void causal_conv_forward_cpu(Rows<const T> x, ConvFilter<T> filter, HostRanges sequences, Rows<T> state, Rows<T> y);

/// dweight may be null.
template <class T>
void causal_conv_backward_cpu(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, HostRanges sequences, Rows<T> dx,
                              float* dweight);

template <class T>
void causal_conv_forward_cuda(Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences, Rows<T> state, Rows<T> y,
                              Stream stream);

template <class T>
void causal_conv_backward_cuda(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences,
                               Rows<T> dx, Stream stream);

/// Workspace of causal_conv_weight_gradient_cuda, in floats.
constexpr std::int64_t kConvChunks = 64;
constexpr std::int64_t causal_conv_workspace(std::int64_t channels) { return kConvChunks * kMaxConvTaps * channels; }

/// dweight += the gradient of the weight.
template <class T>
void causal_conv_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences,
                                      float* dweight, float* workspace, Stream stream);

}  // namespace lora_train::kernels
