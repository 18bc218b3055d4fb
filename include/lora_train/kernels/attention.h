// Scaled dot-product attention over documents laid side by side; no token sees another document.
// Nq query tokens, Nk key tokens, H heads, K kv heads (H a multiple of K), E head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace lora_train::kernels {

/// Attention backends on CUDA; a CPU has a single one.
enum class AttentionBackend {
  kAuto,       ///< the first of the others that supports the case
  kFa2,        ///< FlashAttention 2 of LibTorch: bf16
  kCudnn,      ///< cuDNN's fused attention: bf16, Hopper and newer
  kEfficient,  ///< LibTorch's memory-efficient attention: fp32
  kReference
};

/// Document boundaries and the attention mask.
struct AttentionLayout {
  std::vector<int64_t> cu_seqlens_q;  ///< num_docs + 1, host copy; document d has queries [cu[d], cu[d+1])
  std::vector<int64_t> cu_seqlens_k;  ///< the same for keys; in training equal to cu_seqlens_q
  /// The causal mask is bottom-right aligned: query i sees keys up to i + len_k - len_q. Sliding window: the number of keys
  /// that a query sees, its own included; 0 = all before it.
  int64_t window = 0;
  double scale = 0;  ///< usually E^-0.5

  AttentionBackend backend = AttentionBackend::kAuto;
  /// On CUDA, int32 [num_docs + 1]: the same numbers on the device. Undefined: copied there at each call.
  at::Tensor cu_seqlens_q_device{}, cu_seqlens_k_device{};
  int64_t max_len_q = 0, max_len_k = 0;  ///< longest document; 0: taken from the host copies
  /// What a CUDA backend derived from this layout in its first layer, cached for the others.
  mutable std::shared_ptr<void> prepared{};
  /// Set by attention_cache.h for FlashAttention 2: int32 [num_docs], keys in use from cu_seqlens_k_device on.
  at::Tensor seqused_k_device{};
};

/// The facts that decide which backend supports a case.
struct AttentionCase {
  AttentionBackend asked = AttentionBackend::kAuto;
  at::ScalarType dtype = at::kBFloat16;
  int64_t head_size = 0, num_docs = 0, num_heads = 0, max_len_q = 0, max_len_k = 0;
  int sm = 0;  ///< 90 for compute capability 9.0
  bool deterministic = false;
  bool has_cuda_library = true;
};

/// A backend other than kAuto, or why the requested one does not support this case.
struct AttentionChoice {
  AttentionBackend backend = AttentionBackend::kReference;
  std::string refusal;  ///< one sentence; empty when there is a backend
};
AttentionChoice choose_attention(const AttentionCase& attention_case);

/// The backends that support a case, the default of kAuto first; a backend requested by name alone.
std::vector<AttentionBackend> attention_candidates(const AttentionCase& attention_case);

/// The sizes that the memory of an attention call depends on.
struct AttentionSizes {
  int64_t num_tokens = 0, num_docs = 0, max_len = 0;  ///< of queries, and as many keys
  int64_t num_heads = 0, num_kv_heads = 0, head_size = 0;
  int num_multiprocessors = 0;
  bool deterministic = false;
};

/// Device bytes that one backward call of a fused backend takes besides its arguments (a forward takes less): copies of
/// strided dout and out, gradients of its own, and the kernel's own sums. 0 for kAuto and kReference.
int64_t attention_call_bytes(AttentionBackend backend, const AttentionSizes& sizes);

/// Of those, cuDNN's workspace (9.19 on Hopper): fp32 sums of dq, of dk and dv of every head where heads share, and all
/// scores where it has to be deterministic.
int64_t cudnn_workspace_bytes(const AttentionSizes& sizes);

/// out [Nq, H, E] and lse [Nq, H] fp32 (log-sum-exp, for the backward) are written; out rows may be strided over Nq. On
/// CUDA lse with strides (1, Nq), a transposed [H, Nq], saves copies. Slots past the last document stay as they are.
/// On CUDA throws ConfigError where the layout's backend cannot compute this (choose_attention), DeviceError from CUDA.
/// q [Nq, H, E], k and v [Nk, K, E]: fp32, bf16 or fp64, strided over tokens, the last two dimensions contiguous.
/// Documents of length 0 are skipped. Deterministic on a CPU.
void attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse);

/// Gradients of q, k and v, in their shapes; strided over tokens, the last two dimensions contiguous.
struct AttentionGradients {
  at::Tensor q, k, v;
};

/// On entry `gradients` says where they may be written, on return where they are: there, or in the backend's own memory,
/// which ends with the last document. A CPU and the reference write what they are given; FlashAttention 2 and the
/// memory-efficient one never do, cuDNN where it is contiguous. qk_norm_rope_backward then reads them where they are, without
/// a copy.
void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                        AttentionGradients& gradients);

/// The same by explicit scores and softmax, per document, in fp32 (fp64); any device. Gradients are written where given.
void attention_forward_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionLayout& layout, at::Tensor& out, at::Tensor& lse);
void attention_backward_reference(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                                  AttentionGradients& gradients);

}  // namespace lora_train::kernels
