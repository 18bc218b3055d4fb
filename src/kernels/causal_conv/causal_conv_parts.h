// Contracts in causal_conv.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "launch/elements.h"

namespace lora_train::kernels {

constexpr int kMaxConvTaps = 8;

/// weight [C, taps].
template <class T>
struct ConvFilter {
  const T* weight;
  std::int64_t channels;
  int taps;
};

/// Sequence s has the tokens [cu[s], cu[s + 1]); those from cu[count] to num_tokens belong to none. Index is
/// std::int64_t on a CPU, std::int32_t on a GPU.
template <class Index>
struct ConvSequences {
  const Index* cu;  ///< [count + 1]
  std::int64_t count, num_tokens;
  const std::int64_t* state_rows;  ///< [count], or null: no states

  /// The sequence of token n, or `count`.
  LORA_TRAIN_INLINE std::int64_t of_token(std::int64_t n) const {
    std::int64_t low = 0, high = count;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (cu[middle + 1] > n) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
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
void causal_conv_forward_cpu(Rows<const T> x, ConvFilter<T> filter, ConvSequences<std::int64_t> sequences,
                             Rows<T> state, Rows<T> y);

/// dweight may be null.
template <class T>
void causal_conv_backward_cpu(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter,
                              ConvSequences<std::int64_t> sequences, Rows<T> dx, float* dweight);

template <class T>
void causal_conv_forward_cuda(Rows<const T> x, ConvFilter<T> filter, ConvSequences<std::int32_t> sequences,
                              Rows<T> state, Rows<T> y, Stream stream);

template <class T>
void causal_conv_backward_cuda(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter,
                               ConvSequences<std::int32_t> sequences, Rows<T> dx, Stream stream);

/// Workspace of causal_conv_weight_gradient_cuda, in floats.
constexpr std::int64_t kConvChunks = 64;
constexpr std::int64_t causal_conv_workspace(std::int64_t channels) { return kConvChunks * kMaxConvTaps * channels; }

/// dweight += the gradient of the weight.
template <class T>
void causal_conv_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter,
                                      ConvSequences<std::int32_t> sequences, float* dweight, float* workspace,
                                      Stream stream);

}  // namespace lora_train::kernels
