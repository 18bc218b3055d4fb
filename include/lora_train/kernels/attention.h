// Scaled dot-product attention over documents laid side by side; no token sees another document.
// Nq query tokens, Nk key tokens, H heads, K kv heads (H a multiple of K), E head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lora_train::kernels {

/// Where the documents lie and what may see what.
struct AttentionLayout {
  std::vector<int64_t> cu_seqlens_q;  ///< num_docs + 1, host copy; document d has queries [cu[d], cu[d+1])
  std::vector<int64_t> cu_seqlens_k;  ///< the same of the keys; in training equal to cu_seqlens_q
  /// Causal is bottom-right aligned: query i sees keys up to i + len_k - len_q. Keys a query sees, itself included:
  /// at most `window`; 0 = all before it.
  int64_t window = 0;
  double scale = 0;  ///< usually E^-0.5
};

/// out [Nq, H, E] and lse [Nq, H] fp32 (log-sum-exp, for the backward) are written; out rows may be strided over Nq.
/// q [Nq, H, E], k and v [Nk, K, E]: fp32, bf16 or fp64, strided over tokens, the last two dimensions contiguous.
/// Documents of length 0 are skipped. Deterministic on a CPU.
void attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse);

/// dq, dk, dv are written, shapes and strides as q, k, v.
void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout, at::Tensor& dq,
                        at::Tensor& dk, at::Tensor& dv);

/// The same by explicit scores and softmax, per document, in fp32 (fp64); any device.
void attention_forward_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionLayout& layout, at::Tensor& out, at::Tensor& lse);
void attention_backward_reference(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                                  at::Tensor& dq, at::Tensor& dk, at::Tensor& dv);

}  // namespace lora_train::kernels
