// Contracts in embedding.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

/// Copies row ids[n] of weight to row n of out; strides and width in bytes.
void gather_rows_cpu(Rows<const char> weight, const std::int32_t* ids, Rows<char> out, std::int64_t num_tokens,
                     std::int64_t width_bytes);

/// out[n] = scale * weight[ids[n]].
template <class T>
void gather_scaled_rows_cpu(Rows<const T> weight, const std::int32_t* ids, float scale, Rows<T> out,
                            std::int64_t num_tokens, std::int64_t D);

/// dweight[ids[n]] += scale * dout[n]. Threads own columns, so sums run in the order of the tokens.
template <class T>
void scatter_add_rows_cpu(Rows<const T> dout, const std::int32_t* ids, float scale, Rows<float> dweight,
                          std::int64_t num_tokens, std::int64_t D);

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

template <class T>
void gather_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                      std::int64_t num_rows, std::int64_t D, Stream stream);

template <class T>
void scatter_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                       std::int64_t num_rows, std::int64_t D, Stream stream);

/// weights and picked_weights may both be null.
void take_next_cuda(const std::int64_t* rows, const std::int32_t* targets, const float* weights, std::int64_t* next,
                    std::int64_t* picked_rows, std::int32_t* picked_targets, float* picked_weights, std::int64_t count,
                    Stream stream);

}  // namespace lora_train::kernels
