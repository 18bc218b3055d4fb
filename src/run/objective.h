// Objectives: what a step minimizes, and how it computes the gradients of a micro-batch.
#pragma once

#include "lora_train/config/keys/profile.h"
#include "lora_train/run/train_step.h"

namespace lora_train::run {

/// A row of the table in objective.cpp.
struct Objective {
  LossType type;
  /// Enqueues the forward and backward passes of a micro-batch: adds its loss to kLossSum, and to the gradients of the
  /// parameters those of its loss divided by kLossDenominator.
  void (*enqueue_gradients)(StepContext& context, const model::Batch& batch);
  /// Enqueues the next chunk of the loss, between enqueue_forward and enqueue_backward, for StepGraphs to capture. Null: the
  /// objective runs without graphs.
  void (*enqueue_loss_chunk)(StepContext& context, const model::Batch& batch) = nullptr;
  int num_token_buffers = 0;  ///< how many of StepContext::token_buffers it uses
};

const Objective& objective_for(LossType type);

/// What StepContext::token_buffers holds: `num_token_buffers` tensors [max_tokens] fp32.
std::vector<at::Tensor> make_token_buffers(const Objective& objective, std::int64_t max_tokens, at::Device device);

}  // namespace lora_train::run
