// Scaled dot-product attention over documents packed side by side; no token attends to another document.
// Nq query tokens, Nk key tokens, H heads, K kv heads (H a multiple of K), E head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lora_train::kernels {

/// Attention backends on CUDA. The CPU has a single one.
enum class AttentionBackend {
  kAuto,       ///< the first of attention_candidates()
  kFa2,        ///< LibTorch's FlashAttention 2: bf16
  kCudnn,      ///< cuDNN's fused attention: bf16, Hopper and newer
  kEfficient,  ///< LibTorch's memory-efficient attention: fp32
  kReference
};
const char* name_of(AttentionBackend backend);  ///< "fa2"

/// What is known about a run's attention calls, so that a backend can prepare for all of them at the first.
struct AttentionCalls {
  struct Size {
    int64_t num_docs = 0, max_len = 0;
  };
  int64_t max_tokens = 0;     ///< no call has more
  bool has_backward = true;   ///< a backward follows each forward
  std::vector<Size> sizes{};  ///< the sizes of most calls
};

/// Document boundaries and the attention mask.
struct AttentionLayout {
  std::vector<int64_t> cu_seqlens_q;  ///< num_docs + 1, host copy; document d has queries [cu[d], cu[d+1])
  std::vector<int64_t> cu_seqlens_k;  ///< the same for keys; in training equal to cu_seqlens_q
  /// The sliding window: how many keys a query attends to, its own included; 0 = all before it. The causal mask is
  /// bottom-right aligned: query i attends to keys up to i + len_k - len_q.
  int64_t window = 0;
  double scale = 0;  ///< usually E^-0.5

  AttentionBackend backend = AttentionBackend::kAuto;
  /// On CUDA, int32 [num_docs + 1]: the same numbers on the device. Undefined: copied there at each call.
  at::Tensor cu_seqlens_q_device{}, cu_seqlens_k_device{};
  int64_t max_len_q = 0, max_len_k = 0;  ///< length of the longest document; 0: computed from the host copies
  /// Data that a CUDA backend derived from this layout in the first layer, cached for the others.
  mutable std::shared_ptr<void> prepared{};
  /// Set by attention_cache.h for FlashAttention 2: int32 [num_docs], number of keys in use, starting at
  /// cu_seqlens_k_device.
  at::Tensor seqused_k_device{};
  std::shared_ptr<const AttentionCalls> calls{};  ///< all calls of the run; null: unknown
};

/// The facts that decide which backend supports a case.
struct AttentionCase {
  AttentionBackend requested = AttentionBackend::kAuto;
  at::ScalarType dtype = at::kBFloat16;
  int64_t head_size = 0, num_docs = 0, num_heads = 0, max_len_q = 0, max_len_k = 0;
  int sm = 0;  ///< 90 for compute capability 9.0
  bool deterministic = false;
  bool has_cuda_library = true;
};

/// A backend other than kAuto, or the reason why the requested one does not support this case.
struct AttentionChoice {
  AttentionBackend backend = AttentionBackend::kReference;
  std::string refusal;  ///< one sentence; empty when there is a backend
};
AttentionChoice choose_attention(const AttentionCase& attention_case);

/// The backends that support a case, kAuto's choice first: cuDNN before FlashAttention 2 on sm_90 and sm_100 unless
/// deterministic, else after it. If the case names a backend, only that one.
std::vector<AttentionBackend> attention_candidates(const AttentionCase& attention_case);

/// The sizes that determine the memory of an attention call.
struct AttentionSizes {
  int64_t num_tokens = 0, num_docs = 0, max_len = 0;  ///< for queries, and the same for keys
  int64_t num_heads = 0, num_kv_heads = 0, head_size = 0;
  int num_multiprocessors = 0;
  bool deterministic = false;
};

/// Device bytes that one backward call of a fused backend allocates besides its arguments (a forward takes less):
/// copies of strided dout and out, its own gradient buffers, and the kernel's partial sums. 0 for kAuto and kReference.
int64_t attention_call_bytes(AttentionBackend backend, const AttentionSizes& sizes);

/// cuDNN's workspace, a part of those bytes (9.19 on Hopper): fp32 sums of dq; with shared KV heads, also dk and dv for
/// every query head; if deterministic, the scores too.
int64_t cudnn_workspace_bytes(const AttentionSizes& sizes);

/// Bytes that a backward on a CPU with AVX-512 takes per thread, key of the longest document and element of a head;
/// 0 on other CPUs. Elements have element_bytes.
std::int64_t attention_backward_bytes(std::int64_t element_bytes);

/// Writes out [Nq, H, E], whose rows may be strided over Nq, and lse [Nq, H] fp32 (log-sum-exp, for the backward). On
/// CUDA, lse with strides (1, Nq), a transposed [H, Nq], saves copies. Leaves slots past the last document unchanged.
/// q [Nq, H, E], k and v [Nk, K, E]: fp32, bf16 or fp64, strided over tokens, the last two dimensions contiguous.
/// Skips documents of length 0. Deterministic on a CPU. On CUDA, throws ConfigError if the layout's backend does not
/// support the case (choose_attention), and DeviceError from CUDA.
void attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse);

/// Gradients of q, k and v, in their shapes; strided over tokens, the last two dimensions contiguous.
struct AttentionGradients {
  at::Tensor q, k, v;
};

/// On entry, `gradients` holds buffers that may be written to. On return, it holds the gradients: in these buffers, or
/// in the backend's own memory, which has no slots past the last document. The CPU and the reference always use the
/// given buffers, cuDNN only if they are contiguous, FlashAttention 2 and the memory-efficient backend never.
/// qk_norm_rope_backward reads either without a copy.
void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                        AttentionGradients& gradients);

/// The same with explicit scores and softmax, per document, in fp32 (fp64); any device. Gradients go to the given
/// buffers.
decltype(attention_forward) attention_forward_reference;
decltype(attention_backward) attention_backward_reference;

// Compares two implementations document by document: the norm of a whole batch would hide one short wrong document.

struct DocumentError {
  std::int64_t document = -1;  ///< -1: all documents are equal
  double error = 0;            ///< infinite if a number is not finite
};

/// The largest error of a document: |got - want| / |want| over its rows. |want| is at least the document's share of the
/// norm of all documents, because gradients of a one-token document are zero except for rounding.
/// got, want [rows, ...], the same floating dtype and device; document d has rows [cu_seqlens[d], cu_seqlens[d + 1]).
/// Rows after the last document are not compared. Waits for the device.
DocumentError worst_document(const at::Tensor& got, const at::Tensor& want,
                             const std::vector<std::int64_t>& cu_seqlens);

}  // namespace lora_train::kernels
