// Gathers rows and accumulates their gradients. Contracts in embedding.h.
#pragma once

#include "launch/rows.h"

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

}  // namespace lora_train::kernels
