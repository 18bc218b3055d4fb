#include "lora_train/model/objective.h"

#include <ATen/ATen.h>

namespace lora_train::model {

ObjectiveValue cross_entropy(const at::Tensor& log_probs, const at::Tensor& weights) {
  const at::Tensor sum = weights.defined() ? log_probs.to(at::kDouble).mul(weights).sum() : log_probs.sum(at::kDouble);
  return {sum.neg(), weights};
}

}  // namespace lora_train::model
