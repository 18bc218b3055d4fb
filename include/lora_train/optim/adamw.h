// AdamW as torch.optim.AdamW: decoupled weight decay before the update, eps outside the root, bias correction.
// Source: arXiv 1711.05101; pytorch.org/docs/stable/generated/torch.optim.AdamW.html
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::optim {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
};

/// One fused pass over flat buffers. params, grads, exp_avg, exp_avg_sq: [n] fp32, contiguous. step counts from 1.
/// Elements [0, num_decayed) get weight decay, the rest none. Gradients are multiplied by grad_scale first (clipping)
/// and left as they are. Buffers of length 0 are fine. Runs on the device of the tensors.
void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, int64_t step,
                double learning_rate, const AdamWOptions& options, int64_t num_decayed, double grad_scale);

/// The same in plain ATen operations, several passes, any device; fp64 too.
void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          int64_t step, double learning_rate, const AdamWOptions& options, int64_t num_decayed,
                          double grad_scale);

}  // namespace lora_train::optim
