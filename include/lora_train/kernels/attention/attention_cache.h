// Attention over a KV cache, for decoding; forward only.
// Nq query tokens, S tokens of the cache, H heads, K kv heads (H a multiple of K), E head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {

/// Document boundaries. Document d has queries [cu_seqlens_q[d], cu_seqlens_q[d + 1]) and keys
/// [key_begin[d], key_begin[d] + num_keys[d]) of the cache; documents may be in any order in the cache, and slots
/// between them are not read. Every document has at least one query, and at least as many keys as queries; the last key
/// belongs to the last query.
struct CachedLayout {
  std::vector<int64_t> cu_seqlens_q, key_begin, num_keys;
  int64_t window = 0;  ///< as in AttentionLayout
  double scale = 0;
  AttentionBackend backend = AttentionBackend::kAuto;
  /// On CUDA, the same as int32 (key_begin with one extra entry, which is not used). Undefined: copied there at each
  /// call.
  at::Tensor cu_seqlens_q_device{}, key_begin_device{}, num_keys_device{};
  /// Above 0: no document has more keys than this, and key_begin and num_keys are read on the device only, when the
  /// work runs; the host copies then only have the right length. A captured call needs it (refuses_max_keys).
  int64_t max_keys = 0;

  std::size_t num_docs() const { return key_begin.size(); }
};

/// Writes out [Nq, H, E], whose rows may be strided. q [Nq, H, E], k and v [S, K, E]: fp32, bf16 or fp64, strided over
/// tokens, the last two dimensions contiguous.
/// On a CPU, documents with one query read the cache in place, in several threads: heads that share a KV head are
/// computed together, with fp32 sums. Other documents use attention_forward. A document's result does not depend on the
/// other documents. On CUDA, uses FlashAttention 2 if it supports the case (bf16); otherwise copies the keys in use
/// side by side for attention_forward. If every document has one query, query heads share KV heads and there is no
/// window, FlashAttention 2 reads each key once for all query heads of its KV head, and splits the keys over blocks by
/// max_keys.
void attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CachedLayout& layout,
                      at::Tensor& out);

/// Empty if attention_cached accepts max_keys for such queries; else the reason, in one sentence.
std::string refuses_max_keys(at::Device device, at::ScalarType dtype, int64_t head_size, AttentionBackend backend);

}  // namespace lora_train::kernels
