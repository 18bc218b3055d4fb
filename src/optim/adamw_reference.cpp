#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          int64_t step, double learning_rate, const AdamWOptions& options, int64_t num_decayed,
                          double grad_scale) {
  const double correction1 = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2_sqrt = std::sqrt(1.0 - std::pow(options.beta2, static_cast<double>(step)));
  const auto g = grads * grad_scale;
  params.narrow(0, 0, num_decayed).mul_(1.0 - learning_rate * options.weight_decay);
  exp_avg.lerp_(g, 1.0 - options.beta1);
  exp_avg_sq.mul_(options.beta2).addcmul_(g, g, 1.0 - options.beta2);
  const auto denominator = exp_avg_sq.sqrt().div_(correction2_sqrt).add_(options.epsilon);
  params.addcdiv_(exp_avg, denominator, -learning_rate / correction1);
}

}  // namespace lora_train::optim
