// cuDNN's ragged offsets: where packed documents begin in tensors of different strides. No torch.
#pragma once

#include <cstdint>

#include "launch/rows.h"

namespace lora_train::kernels {

constexpr int kMaxRaggedTables = 8;

struct RaggedTables {
  int count = 0;
  std::int64_t strides[kMaxRaggedTables] = {};  ///< elements between two tokens
  bool is_of_keys[kMaxRaggedTables] = {};       ///< uses cu_seqlens_k, else cu_seqlens_q
};

/// begins [count, begins_row]: cu_seqlens[min(d, num_docs)] * stride. lengths [2, lengths_row]: the lengths of the documents in
/// queries, then in keys; 0 past the last document. cu_seqlens [num_docs + 1] on the device.
void ragged_tables_cuda(const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k, std::int64_t num_docs,
                        const RaggedTables& tables, std::int64_t* begins, std::int64_t begins_row,
                        std::int32_t* lengths, std::int64_t lengths_row, Stream stream);

}  // namespace lora_train::kernels
