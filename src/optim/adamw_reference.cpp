#include <ATen/ATen.h>

#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, int64_t num_decayed, const at::Tensor& scalars) {
  const auto is_stopped = scalars[kNonFinite] != 0, learning_rate = scalars[kLearningRate];
  const auto g = grads * scalars[kClipFactor];
  auto p = params.clone();
  p.narrow(0, 0, num_decayed).mul_(1.0 - learning_rate * options.weight_decay);
  const auto m = exp_avg.lerp(g, 1.0 - options.beta1);
  const auto v = (exp_avg_sq * options.beta2).addcmul_(g, g, 1.0 - options.beta2);
  const auto denominator = v.sqrt().div_(scalars[kBeta2Correction].sqrt()).add_(options.epsilon);
  p.add_((m * (-learning_rate / scalars[kBeta1Correction])).div_(denominator));
  params.copy_(at::where(is_stopped, params, p));
  exp_avg.copy_(at::where(is_stopped, exp_avg, m));
  exp_avg_sq.copy_(at::where(is_stopped, exp_avg_sq, v));
}

}  // namespace lora_train::optim
