// Bytes and FLOPs of an attention call, for work_record.h.
#pragma once

#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {

struct AttentionTensors {
  const at::Tensor &q, &k, &v, &out, &lse;
};

/// True if the backend returns gradients in its own memory.
bool has_own_gradients(AttentionBackend backend);

/// FLOPs count the scores that the mask allows: 2 products forward, 5 backward. Bytes count q, k, v, out, lse and their gradients
/// once, and the copies that a CUDA backend makes around its kernels (cuda/attention_*.cpp), but not partial sums inside them.
void describe_attention_forward(Work& work, AttentionBackend backend, const AttentionTensors& t,
                                const AttentionLayout& layout);
void describe_attention_backward(Work& work, AttentionBackend backend, const AttentionTensors& t,
                                 const at::Tensor& dout, const AttentionGradients& gradients,
                                 const AttentionLayout& layout);

}  // namespace lora_train::kernels
