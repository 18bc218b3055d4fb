#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {
namespace {

/// cuDNN 9.19 keeps the gradients of all scores in bf16 if its backward must be deterministic.
constexpr int64_t kMaxScoreBytes = int64_t{1} << 30;

std::string refusal_of_fa2(const AttentionCase& c) {
  if (c.dtype != at::kBFloat16) return "fa2 computes only in bf16; use precision: bf16 or attn_implementation: auto";
  if (c.sm < 80) return "fa2 needs compute capability 8.0 or newer";
  if (c.head_size % 8 != 0 || c.head_size > 256) {
    return fmt::format("fa2 takes head sizes that are multiples of 8 up to 256, not {}", c.head_size);
  }
  return {};
}

std::string refusal_of_cudnn(const AttentionCase& c) {
  if (c.dtype != at::kBFloat16) return "cudnn attention computes only in bf16; use precision: bf16";
  if (c.sm < 90 || c.sm / 10 == 12) {
    return "cudnn attention over packed documents needs Hopper or datacenter Blackwell; use attn_implementation: fa2";
  }
  const int64_t largest = c.sm / 10 == 9 ? 256 : 128;
  if (c.head_size % 8 != 0 || c.head_size > largest) {
    return "cudnn attention takes head sizes that are multiples of 8 up to " + std::to_string(largest) +
           " on this GPU, not " + std::to_string(c.head_size) + "; use attn_implementation: fa2";
  }
  const int64_t score_bytes = 2 * c.num_docs * c.num_heads * c.max_len_q * c.max_len_k;
  if (c.deterministic && score_bytes > kMaxScoreBytes) {
    return "cudnn attention with deterministic: true would keep all scores (" + std::to_string(score_bytes >> 20) +
           " MiB); use attn_implementation: fa2";
  }
  return {};
}

std::string refusal_of_efficient(const AttentionCase& c) {
  if (c.dtype != at::kFloat) return "memory-efficient attention computes only in fp32; use attn_implementation: auto";
  if (c.head_size % 4 != 0 || c.head_size > 128) {
    return fmt::format("memory-efficient attention takes head sizes that are multiples of 4 up to 128, not {}",
                       c.head_size);
  }
  return {};
}

std::string refusal_of(AttentionBackend backend, const AttentionCase& c) {
  if (backend == AttentionBackend::kReference) return {};
  if (!c.has_cuda_library) return "liblora_train_cuda.so is not loaded; use attn_implementation: reference";
  if (backend == AttentionBackend::kFa2) return refusal_of_fa2(c);
  if (backend == AttentionBackend::kCudnn) return refusal_of_cudnn(c);
  return refusal_of_efficient(c);
}

constexpr int64_t kBf16Bytes = 2, kFloatBytes = 4;

int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/// mha_varlen_bwd of LibTorch 2.11: 128 spare rows per document, heads rounded up, dk and dv of every head if heads are
/// shared.
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

/// Sums over the rows of a document.
struct Squares {
  double error = 0, want = 0;
};

/// Sums of squares of each row, fp64 on the CPU. Takes part of the rows at a time to keep the fp32 copies small.
std::vector<Squares> squares_of_rows(const at::Tensor& got, const at::Tensor& want, std::int64_t num_rows) {
  constexpr std::int64_t kRows = 2048;
  const at::ScalarType type = want.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Squares> squares;
  for (std::int64_t begin = 0; begin < num_rows; begin += kRows) {
    const std::int64_t count = std::min(kRows, num_rows - begin);
    const auto rows = [&](const at::Tensor& t) { return t.narrow(0, begin, count).reshape({count, -1}).to(type); };
    const at::Tensor expected = rows(want);
    const at::Tensor sums =
        at::stack({(rows(got) - expected).square().sum(1), expected.square().sum(1)}).to(at::kCPU, at::kDouble);
    const double* const values = sums.const_data_ptr<double>();
    for (std::int64_t i = 0; i < count; ++i) squares.push_back({values[i], values[count + i]});
  }
  return squares;
}

}  // namespace

const char* name_of(AttentionBackend backend) {
  constexpr std::array kNames = {"auto", "fa2", "cudnn", "efficient", "reference"};
  return kNames[static_cast<std::size_t>(backend)];
}

std::vector<AttentionBackend> attention_candidates(const AttentionCase& c) {
  if (c.requested != AttentionBackend::kAuto) return {c.requested};
  std::array order = {AttentionBackend::kFa2, AttentionBackend::kCudnn, AttentionBackend::kEfficient};
  // FlashAttention 2 is written for Ampere. A deterministic backward of cuDNN keeps all scores.
  const bool is_cudnn_first = (c.sm == 90 || c.sm / 10 == 10) && !c.deterministic;
  if (is_cudnn_first) std::swap(order[0], order[1]);
  std::vector<AttentionBackend> candidates;
  for (const auto backend : order) {
    if (refusal_of(backend, c).empty()) candidates.push_back(backend);
  }
  if (candidates.empty()) candidates.push_back(AttentionBackend::kReference);
  return candidates;
}

AttentionChoice choose_attention(const AttentionCase& c) {
  if (c.requested != AttentionBackend::kAuto) return {c.requested, refusal_of(c.requested, c)};
  return {attention_candidates(c).front(), {}};
}

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

DocumentError worst_document(const at::Tensor& got, const at::Tensor& want,
                             const std::vector<std::int64_t>& cu_seqlens) {
  const std::int64_t num_rows = cu_seqlens.back();
  const std::vector<Squares> rows = squares_of_rows(got, want, num_rows);
  double of_all = 0;
  for (const Squares& row : rows) of_all += row.want;
  DocumentError worst;
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    Squares sum;
    for (std::int64_t i = cu_seqlens[d]; i < cu_seqlens[d + 1]; ++i) {
      sum.error += rows[static_cast<std::size_t>(i)].error;
      sum.want += rows[static_cast<std::size_t>(i)].want;
    }
    if (sum.error == 0) continue;
    const double share = static_cast<double>(cu_seqlens[d + 1] - cu_seqlens[d]) / static_cast<double>(num_rows);
    double error = std::sqrt(sum.error / std::max(sum.want, share * of_all));
    if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst.error) worst = {static_cast<std::int64_t>(d), error};
  }
  return worst;
}

}  // namespace lora_train::kernels
