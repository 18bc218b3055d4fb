// An attention whose results are wrong in one document, for tests of what compares backends. On a CPU.
#pragma once

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::testing_support {

struct WrongAttention {
  inline static kernels::AttentionBackend backend = kernels::AttentionBackend::kAuto;  ///< calls for others are right
  inline static std::size_t document = 0;
  inline static bool is_forward_wrong = false, is_backward_wrong = false;
  inline static bool is_window_ignored = false;  ///< in all documents

  static constexpr kernels::CudaAttention calls() { return {&forward, &backward}; }

  static void forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const kernels::AttentionLayout& layout, at::Tensor& out, at::Tensor& lse) {
    kernels::AttentionLayout seen = layout;
    if (is_window_ignored && layout.backend == backend) seen.window = 0;
    kernels::attention_forward(q, k, v, seen, out, lse);
    if (is_forward_wrong) spoil(layout, out);
  }
  static void backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& out, const at::Tensor& lse, const kernels::AttentionLayout& layout,
                       kernels::AttentionGradients& gradients) {
    kernels::attention_backward(dout, q, k, v, out, lse, layout, gradients);
    if (is_backward_wrong) spoil(layout, gradients.v);
  }

 private:
  static void spoil(const kernels::AttentionLayout& layout, const at::Tensor& result) {
    if (layout.backend != backend) return;
    result.slice(0, layout.cu_seqlens_q[document], layout.cu_seqlens_q[document + 1]).mul_(1.25);
  }
};

}  // namespace lora_train::testing_support
