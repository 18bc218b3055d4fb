// N tokens, B documents, H heads, K kv heads, E head size.
#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {
namespace {

constexpr int64_t kBf16Bytes = 2, kFloatBytes = 4;

int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/// mha_varlen_bwd of LibTorch 2.11: 128 spare rows a document, heads rounded up, dk and dv of every head where heads share.
int64_t fa2_bytes(const AttentionSizes& s) {
  const int64_t N = s.num_tokens, H = s.num_heads, K = s.num_kv_heads, E = s.head_size;
  const int64_t rows = N + 128 * s.num_docs, wide = rounded_up(E, E <= 128 ? 32 : 64);
  const int64_t splits = s.deterministic ? (s.num_multiprocessors + s.num_docs * H - 1) / (s.num_docs * H) : 1;
  const int64_t copies = 2 * N * H * E * kBf16Bytes + N * H * kFloatBytes;
  const int64_t gradients = (N * H * E + 2 * N * K * E) * kBf16Bytes;
  const int64_t sums = rows * H * kFloatBytes + splits * rows * H * wide * kFloatBytes;
  return copies + gradients + sums + (H != K ? 2 * N * H * E * kBf16Bytes : 0);
}

int64_t cudnn_bytes(const AttentionSizes& s) {
  const int64_t gradients = s.num_tokens * (s.num_heads + 2 * s.num_kv_heads) * s.head_size * kBf16Bytes;
  return gradients + cudnn_workspace_bytes(s);
}

/// Expanded q, k, v and gradients in fp32; dk and dv of every head.
int64_t efficient_bytes(const AttentionSizes& s) {
  const int64_t N = s.num_tokens, H = s.num_heads, K = s.num_kv_heads, E = s.head_size;
  const int64_t copies = 2 * N * H * E + (H != K ? 2 * N * H * E : 0);
  const int64_t statistics = s.num_docs * H * rounded_up(s.max_len, 32) + N * H;
  const int64_t gradients = 3 * N * H * E + 2 * N * K * E;
  return (copies + statistics + gradients) * kFloatBytes;
}

}  // namespace

int64_t cudnn_workspace_bytes(const AttentionSizes& s) {
  const int64_t N = s.num_tokens, H = s.num_heads, E = s.head_size;
  const int64_t scores = s.num_docs * H * s.max_len * s.max_len * kBf16Bytes;
  const int64_t of_shared_heads = H != s.num_kv_heads ? 2 * N * H * E * kFloatBytes : 0;
  constexpr int64_t kSpare = int64_t{1} << 20;
  return N * H * kFloatBytes + (s.deterministic ? scores : N * H * E * kFloatBytes) + of_shared_heads + kSpare;
}

int64_t attention_call_bytes(AttentionBackend backend, const AttentionSizes& sizes) {
  switch (backend) {
    case AttentionBackend::kFa2: return fa2_bytes(sizes);
    case AttentionBackend::kCudnn: return cudnn_bytes(sizes);
    case AttentionBackend::kEfficient: return efficient_bytes(sizes);
    case AttentionBackend::kAuto:
    case AttentionBackend::kReference: break;
  }
  return 0;
}

}  // namespace lora_train::kernels
