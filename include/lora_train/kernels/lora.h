// Gradients of LoRA matrices: products with one very thin side. N tokens, O outputs, D inputs, R rank.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// grad_b += scale * dy^T s. dy [N, O] and s [N, R]: fp32, bf16 or fp64, one dtype, rows may be strided.
/// grad_b [O, R] fp32 (fp64 for fp64), rows may be strided; summed in fp32 for bf16 too. Reads dy once. Deterministic.
void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, double scale, at::Tensor& grad_b);

/// grad_a += ds^T x. ds [N, R], x [N, D], as above. grad_a [R, D] fp32 (fp64), rows may be strided. Reads x once.
void lora_grad_a(const at::Tensor& ds, const at::Tensor& x, at::Tensor& grad_a);

void lora_grad_b_reference(const at::Tensor& dy, const at::Tensor& s, double scale, at::Tensor& grad_b);
void lora_grad_a_reference(const at::Tensor& ds, const at::Tensor& x, at::Tensor& grad_a);

}  // namespace lora_train::kernels
