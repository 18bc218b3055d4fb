// One thread per table entry, a few thousand once per batch and pass, or one per slot of padded statistics.
#include <cmath>

#include "attention_parts.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;

/// Blocks: entries in x; in y the tables, then the lengths of queries and of keys.
__global__ void __launch_bounds__(kThreads)
    ragged_tables_kernel(const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k, std::int64_t num_docs,
                         RaggedTables tables, std::int64_t* begins, std::int64_t begins_row, std::int32_t* lengths,
                         std::int64_t lengths_row) {
  const std::int64_t d = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int table = static_cast<int>(blockIdx.y);
  if (table < tables.count) {
    if (d >= begins_row) return;
    std::int64_t stride = 0;
    const std::int32_t* cu_seqlens = cu_seqlens_q;
    // An index known only at run time would copy the arrays to local memory.
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kMaxRaggedTables; ++i) {
      if (i != table) continue;
      stride = tables.strides[i];
      if (tables.is_of_keys[i]) cu_seqlens = cu_seqlens_k;
    }
    begins[table * begins_row + d] = cu_seqlens[d < num_docs ? d : num_docs] * stride;
    return;
  }
  if (d >= lengths_row) return;
  const int of_keys = table - tables.count;
  const std::int32_t* const cu_seqlens = of_keys ? cu_seqlens_k : cu_seqlens_q;
  lengths[of_keys * lengths_row + d] = d < num_docs ? cu_seqlens[d + 1] - cu_seqlens[d] : 0;
}

/// Blocks: chunks of a row, then heads, then documents.
struct PaddedSlot {
  std::int64_t document, head, in_row, in_padded;
};
__device__ __forceinline__ PaddedSlot padded_slot(std::int64_t num_heads, std::int64_t row) {
  const std::int64_t chunks = blocks_for(row, kThreads), of_row = std::int64_t{blockIdx.x} / chunks;
  const std::int64_t in_row = (std::int64_t{blockIdx.x} - of_row * chunks) * kThreads + threadIdx.x;
  return {of_row / num_heads, of_row % num_heads, in_row, of_row * row + in_row};
}

__global__ void __launch_bounds__(kThreads)
    unpad_lse_kernel(const std::int32_t* cu_seqlens, std::int64_t num_heads, const float* padded, std::int64_t row,
                     PackedLse<float> packed) {
  const PaddedSlot slot = padded_slot(num_heads, row);
  const std::int64_t token = cu_seqlens[slot.document] + slot.in_row;
  if (token >= cu_seqlens[slot.document + 1]) return;
  packed.data[token * packed.token_stride + slot.head * packed.head_stride] = padded[slot.in_padded];
}

__global__ void __launch_bounds__(kThreads)
    pad_lse_kernel(const std::int32_t* cu_seqlens, std::int64_t num_heads, PackedLse<const float> packed, float* padded,
                   std::int64_t row) {
  const PaddedSlot slot = padded_slot(num_heads, row);
  if (slot.in_row >= row) return;
  const std::int64_t token = cu_seqlens[slot.document] + slot.in_row;
  padded[slot.in_padded] = token < cu_seqlens[slot.document + 1]
                               ? packed.data[token * packed.token_stride + slot.head * packed.head_stride]
                               : INFINITY;
}

}  // namespace

void unpad_lse_cuda(const std::int32_t* cu_seqlens, std::int64_t num_docs, std::int64_t num_heads, const float* padded,
                    std::int64_t row, PackedLse<float> packed, Stream stream) {
  launch("unpad_lse", unpad_lse_kernel, {num_docs * num_heads * blocks_for(row, kThreads)}, kThreads, stream,
         cu_seqlens, num_heads, padded, row, packed);
}

void pad_lse_cuda(const std::int32_t* cu_seqlens, std::int64_t num_docs, std::int64_t num_heads,
                  PackedLse<const float> packed, float* padded, std::int64_t row, Stream stream) {
  launch("pad_lse", pad_lse_kernel, {num_docs * num_heads * blocks_for(row, kThreads)}, kThreads, stream, cu_seqlens,
         num_heads, packed, padded, row);
}

void ragged_tables_cuda(const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k, std::int64_t num_docs,
                        const RaggedTables& tables, std::int64_t* begins, std::int64_t begins_row,
                        std::int32_t* lengths, std::int64_t lengths_row, Stream stream) {
  const std::int64_t entries = begins_row > lengths_row ? begins_row : lengths_row;
  launch("ragged_tables", ragged_tables_kernel, {blocks_for(entries, kThreads), tables.count + 2}, kThreads, stream,
         cu_seqlens_q, cu_seqlens_k, num_docs, tables, begins, begins_row, lengths, lengths_row);
}

}  // namespace lora_train::kernels
