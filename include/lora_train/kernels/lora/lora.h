// Gradients of a projection's LoRA matrices: tall-skinny products. N tokens, O outputs, D inputs, C columns of the
// skinny operand: the ranks of all adapters side by side, and padding columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lora_train::kernels {

/// One adapter of a projection. It owns columns [column, column + rank) of the skinny operand.
struct LoraPart {
  int64_t column = 0, rank = 0;
  int64_t out_begin = 0, out_end = 0;  ///< its columns of dy; ignored by lora_grad_a
  double scale = 1;                    ///< multiplies the gradient
  at::Tensor grad;                     ///< fp32 (fp64 for fp64), accumulated into, rows may be strided
};

/// grad += scale * dy[:, out_begin:out_end]^T s[:, column:column + rank] for every part; grad [out_end - out_begin,
/// rank]. dy [N, O] and s [N, C]: fp32, bf16 or fp64, one dtype, rows may be strided; sums bf16 in fp32. Deterministic.
/// Reads dy once. On CUDA, takes 2 launches per 64 ranks of the widest part; bf16 uses tensor cores if dy and its parts
/// are aligned to 16 bytes and every part has a multiple of 8 columns.
void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts);

/// grad += scale * ds[:, column:column + rank]^T x for every part; grad [rank, D]. ds [N, C], x [N, D], as above. Reads
/// x once per 64 columns of ds, from the first part's first to the last part's last.
void lora_grad_a(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts);

/// ds = dy sB, and lora_grad_b(dy, s, parts). sB [O, C] and ds [N, C] like s; sB is zero except in columns [column,
/// column + rank) of rows [out_begin, out_end) of a part, and no two parts share columns. ds may share rows with dy. On
/// CUDA, one read of dy gives both if lora_grad_b would use tensor cores and no part has more than kMaxRanksWithDs
/// ranks, with 2 launches per workspace-full of tokens. Otherwise a GEMM precedes lora_grad_b.
void lora_grad_s_and_b(const at::Tensor& dy, const at::Tensor& scaled_b, const at::Tensor& s, at::Tensor& ds,
                       const std::vector<LoraPart>& parts);

void lora_grad_b_reference(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts);
void lora_grad_a_reference(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts);
decltype(lora_grad_s_and_b) lora_grad_s_and_b_reference;

}  // namespace lora_train::kernels
