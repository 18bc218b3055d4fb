// Attention over a KV cache, for decoding; forward only.
// Nq query tokens, S tokens of the cache, H heads, K kv heads (H a multiple of K), E head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lora_train/kernels/attention.h"

namespace lora_train::kernels {

/// Document boundaries. Document d has queries [cu_seqlens_q[d], cu_seqlens_q[d + 1]) and keys
/// [key_begin[d], key_begin[d] + num_keys[d]) of the cache, in any order; slots in between are not read. Every document has
/// at least one query and as many keys as queries; the last key belongs to the last query.
struct CachedLayout {
  std::vector<int64_t> cu_seqlens_q, key_begin, num_keys;
  /// Causal is bottom-right aligned: query i sees keys up to i + num_keys - num_queries. Keys a query sees, itself
  /// included: at most `window`; 0 = all before it.
  int64_t window = 0;
  double scale = 0;
  AttentionBackend backend = AttentionBackend::kAuto;
  /// On CUDA the same as int32 (key_begin with one number more, which nobody reads). Undefined: copied there at each call.
  at::Tensor cu_seqlens_q_device{}, key_begin_device{}, num_keys_device{};

  std::size_t num_docs() const { return key_begin.size(); }
};

/// out [Nq, H, E] is written, rows may be strided. q [Nq, H, E], k and v [S, K, E]: fp32, bf16 or fp64, strided over tokens,
/// the last two dimensions contiguous.
/// On a CPU a document with one query is read straight from the cache, shared heads together, sums in fp32, in several
/// threads; others go through attention_forward. A document's result does not depend on the other documents.
/// On CUDA FlashAttention 2 where it serves (bf16); else the keys in use are copied side by side for attention_forward.
void attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CachedLayout& layout,
                      at::Tensor& out);

/// The same by explicit scores and softmax, per document, in fp32 (fp64); any device.
void attention_cached_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const CachedLayout& layout, at::Tensor& out);

}  // namespace lora_train::kernels
