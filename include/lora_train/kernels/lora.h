// Gradients of the LoRA matrices of a projection: products with one very thin side. N tokens, O outputs, D inputs, C columns
// of the thin side: the ranks of all adapters side by side, some of no adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lora_train::kernels {

/// An adapter among those of a projection: columns [column, column + rank) of the thin side are its.
struct LoraPart {
  int64_t column = 0, rank = 0;
  int64_t out_begin = 0, out_end = 0;  ///< its columns of dy; lora_grad_a does not look
  double scale = 1;                    ///< of what is added to grad
  at::Tensor grad;                     ///< fp32 (fp64 for fp64), added to, rows may be strided
};

/// grad += scale * dy[:, out_begin:out_end]^T s[:, column:column + rank] for every part; grad [out_end - out_begin, rank].
/// dy [N, O] and s [N, C]: fp32, bf16 or fp64, one dtype, rows may be strided; summed in fp32 for bf16 too. Reads dy once,
/// on CUDA with 2 launches for each 64 ranks of the widest part. Deterministic.
void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts);

/// grad += scale * ds[:, column:column + rank]^T x for every part; grad [rank, D]. ds [N, C], x [N, D], as above. Reads x
/// once for each 64 columns.
void lora_grad_a(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts);

void lora_grad_b_reference(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts);
void lora_grad_a_reference(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts);

}  // namespace lora_train::kernels
