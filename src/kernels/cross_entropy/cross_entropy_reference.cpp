#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"

namespace lora_train::kernels {

void cross_entropy_in_place_reference(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                                      const at::Tensor& denominator, CrossEntropyOutput& output) {
  const auto values = to_math(logits);
  const auto has_target = (targets != kNoTarget).unsqueeze(1);
  const auto index = targets.to(at::kLong).unsqueeze(1).clamp_min(0);
  const auto lse = values.logsumexp(1, /*keepdim=*/true);
  output.losses.copy_(at::where(has_target, lse - values.gather(1, index), 0.0).squeeze(1));
  const auto largest = values.amax(1, /*keepdim=*/true);
  if (output.correct.defined()) {
    const auto columns = at::arange(values.size(1), index.options());
    const auto first = at::where(values == largest, columns, values.size(1)).amin(1);
    output.correct.copy_(first == targets);
  }
  if (output.confidence.defined()) {
    output.confidence.copy_((largest - lse).exp().squeeze(1));
  }
  if (denominator.defined()) {
    auto gradient = (values - lse).exp();
    gradient.scatter_add_(1, index, at::full_like(index, -1, gradient.options()));
    if (weights.defined()) gradient.mul_(weights.unsqueeze(1));
    logits.copy_(at::where(has_target, gradient / denominator.to(gradient.scalar_type()), 0.0));
  }
}

void add_losses_reference(const at::Tensor& losses, const at::Tensor& weights, at::Tensor& sum) {
  sum.add_(weights.defined() ? losses.to(at::kDouble).mul(weights).sum() : losses.sum(at::kDouble));
}

}  // namespace lora_train::kernels
