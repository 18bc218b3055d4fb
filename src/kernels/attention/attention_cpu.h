// Attention on a CPU: ATen's flash attention, one document (or one block of its queries) at a time.
#pragma once

#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {

/// Contracts: attention_forward and attention_backward. The caller has checked the arguments.
void attention_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                           at::Tensor& out, at::Tensor& lse);
void attention_backward_cpu(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                            AttentionGradients& gradients);

}  // namespace lora_train::kernels
