#include "lora_train/optim/adamw.h"

#include "lora_train/base/error.h"

namespace lora_train::optim {

void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, int64_t step,
                double learning_rate, const AdamWOptions& options, int64_t num_decayed, double grad_scale) {
  const auto n = params.numel();
  for (const at::Tensor* t : {&std::as_const(params), &grads, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    if (t->dim() != 1 || t->numel() != n || !t->is_contiguous() || t->scalar_type() != params.scalar_type()) {
      throw ShapeError("adamw_step", "all four buffers must be [" + std::to_string(n) + "], contiguous, of one dtype");
    }
  }
  if (step < 1 || num_decayed < 0 || num_decayed > n) {
    throw ShapeError("adamw_step", "step must be 1 or more, num_decayed in [0, " + std::to_string(n) + "]");
  }
  adamw_step_reference(params, grads, exp_avg, exp_avg_sq, step, learning_rate, options, num_decayed, grad_scale);
}

}  // namespace lora_train::optim
