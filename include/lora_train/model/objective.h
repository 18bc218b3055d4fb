// Objectives map the log-probabilities of supervised tokens to a loss. M supervised tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::model {

/// A loss and its derivative with respect to each log p. LossHead::backward takes token_weights from any objective.
struct ObjectiveValue {
  at::Tensor loss_sum;       ///< [] fp64
  at::Tensor token_weights;  ///< [M] fp32: -d(loss_sum) / d(log p); undefined: 1
};

/// loss_sum = sum of -weight * log p. log_probs [M] fp32 (fp64), weights [M] fp32 or undefined: 1.
/// Its token_weights are known before log p, so training needs only one pass: LossHead::train.
ObjectiveValue cross_entropy(const at::Tensor& log_probs, const at::Tensor& weights);

}  // namespace lora_train::model
