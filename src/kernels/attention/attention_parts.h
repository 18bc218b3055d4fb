// Attention on a CPU, including over a cache, and the layout tables of fused backends on a GPU. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "launch/elements.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lora_train::kernels {

struct AttentionLayout;

/// Our kernel, or in fp64 and on processors without AVX-512 ATen's flash attention, one document (or one block of its
/// queries) at a time. Contract: attention_forward; the caller has checked the arguments.
void attention_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                           at::Tensor& out, at::Tensor& lse);

/// Throws ShapeError unless the shapes, dtypes and heads of these fit each other.
void check_attention(const char* kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out);

/// Tokens of the longest document.
std::int64_t longest(const std::vector<std::int64_t>& cu_seqlens);

/// The numbers as int32 on the device: `given`, or if that is undefined a copy.
at::Tensor on_device(const std::vector<std::int64_t>& numbers, const at::Tensor& given, const c10::Device& device);

// Attention of one query per document. T is float or Bf16. H heads, K kv heads, E head size.

/// The query of a document, and the keys that it attends to.
struct DecodeDocument {
  std::int64_t query, key, num_keys;
};

struct HeadSizes {
  std::int64_t num_heads, num_kv_heads, head_size;
};

/// Rows of q and out are [H, E], rows of k and v [K, E]. Sums in fp32. Splits the keys of a document at fixed places,
/// so its result depends on neither the other documents nor the threads.
template <class T>
void attention_decode_cpu(Rows<const T> q, Rows<const T> k, Rows<const T> v, std::span<const DecodeDocument> documents,
                          const HeadSizes& sizes, float scale, Rows<T> out);

/// Log-sum-exp of packed documents [N, H], N tokens in all documents.
template <class T>
struct PackedLse {
  T* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
};

// Attention of packed documents on a CPU with AVX-512 (has_avx512()). T is float or Bf16.

/// Where a document's queries and keys begin, and how many there are.
struct AttentionDocument {
  std::int64_t query, len_q, key, len_k;
};

/// Rows of q are [H, E], rows of k and v [K, E].
template <class T>
struct AttentionOperands {
  Rows<const T> q, k, v;
  std::span<const AttentionDocument> documents;
  HeadSizes sizes;
  std::int64_t window;  ///< 0: none
  float scale;
};

template <class T>
struct AttentionGradientRows {
  Rows<const T> dout, out;
  PackedLse<const float> lse;
  Rows<T> dq, dk, dv;
};

/// Contract: attention_forward and attention_backward. Sums in fp32, rounds results once; probabilities and their
/// gradients are rounded to T as operands of products. A document's result depends on neither the others nor the
/// threads. Memory per thread: a few MiB forward; backward 22 (bf16) or 28 (fp32) bytes per key of the longest document
/// and element of a head, and where whole kv heads would leave threads idle, for all threads up to 64 bytes per element
/// of k.
template <class T>
void attention_forward_blocks(const AttentionOperands<T>& call, Rows<T> out, PackedLse<float> lse);
template <class T>
void attention_backward_blocks(const AttentionOperands<T>& call, const AttentionGradientRows<T>& g);

// Layout tables of packed documents for fused attention backends, computed on the device from cu_seqlens: cuDNN's
// ragged offsets, and the memory-efficient attention's log-sum-exp per document.

constexpr int kMaxRaggedTables = 8;

struct RaggedTables {
  int count = 0;
  std::int64_t strides[kMaxRaggedTables] = {};  ///< elements between two tokens
  bool is_of_keys[kMaxRaggedTables] = {};       ///< uses cu_seqlens_k, else cu_seqlens_q
};

/// begins [count, begins_row]: cu_seqlens[min(d, num_docs)] * stride. lengths [2, lengths_row]: the lengths of the
/// documents in queries, then in keys; 0 past the last document. cu_seqlens [num_docs + 1] on the device.
void ragged_tables_cuda(const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k, std::int64_t num_docs,
                        const RaggedTables& tables, std::int64_t* begins, std::int64_t begins_row,
                        std::int32_t* lengths, std::int64_t lengths_row, Stream stream);

/// Between packed and padded [num_docs, num_heads, row], where row covers the longest document. Reads and writes 4
/// bytes per token and head, except that pad_lse writes all of `padded`: infinity after the end of a document.
void unpad_lse_cuda(const std::int32_t* cu_seqlens, std::int64_t num_docs, std::int64_t num_heads, const float* padded,
                    std::int64_t row, PackedLse<float> packed, Stream stream);
void pad_lse_cuda(const std::int32_t* cu_seqlens, std::int64_t num_docs, std::int64_t num_heads,
                  PackedLse<const float> packed, float* padded, std::int64_t row, Stream stream);

}  // namespace lora_train::kernels
