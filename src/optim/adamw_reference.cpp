#include <ATen/ATen.h>

#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                          const at::Tensor& scalars) {
  const auto is_stopped = scalars[kNonFinite] != 0;
  for (const kernels::ParameterBlock& block : blocks) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, block.begin, block.count); };
    const at::Tensor old_p = part(params), old_m = part(exp_avg), old_v = part(exp_avg_sq);
    const auto learning_rate = scalars[kLearningRate] * block.lr_factor;
    const auto g = part(grads) * scalars[kClipFactor];
    auto p = block.decays ? old_p * (1.0 - learning_rate * options.weight_decay) : old_p.clone();
    const auto m = old_m.lerp(g, 1.0 - options.beta1);
    const auto v = (old_v * options.beta2).addcmul_(g, g, 1.0 - options.beta2);
    const auto denominator = v.sqrt().div_(scalars[kBeta2Correction].sqrt()).add_(options.epsilon);
    p.add_((m * (-learning_rate / scalars[kBeta1Correction])).div_(denominator));
    old_p.copy_(at::where(is_stopped, old_p, p));
    old_m.copy_(at::where(is_stopped, old_m, m));
    old_v.copy_(at::where(is_stopped, old_v, v));
  }
}

}  // namespace lora_train::optim
