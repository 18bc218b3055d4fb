// Contracts in embedding.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch here.
#pragma once

#include <cstdint>

#include "launch/rows.h"

namespace lora_train::kernels {

/// Row trained[i] of the vocabulary, i < num_trained, is values[i] instead of the frozen one. A scale of 1 copies bits.
template <class T>
void embedding_forward_cuda(const std::int32_t* ids, Rows<const T> weight, const std::int64_t* trained,
                            std::int64_t num_trained, Rows<const float> values, float scale, Rows<T> out,
                            std::int64_t num_tokens, std::int64_t D, Stream stream);

/// dweight[ids[n]] += scale * dout[n]. `order` sorts the tokens stably by id; sums run in that order on every GPU.
template <class T>
void embedding_backward_cuda(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout, float scale,
                             Rows<float> dweight, std::int64_t num_tokens, std::int64_t D, Stream stream);

/// grads[i] += scale * sum of dout over the tokens with id trained[i].
template <class T>
void trainable_rows_backward_cuda(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout, float scale,
                                  const std::int64_t* trained, std::int64_t num_trained, Rows<float> grads,
                                  std::int64_t num_tokens, std::int64_t D, Stream stream);

}  // namespace lora_train::kernels
