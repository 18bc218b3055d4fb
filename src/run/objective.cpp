#include "objective.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/cross_entropy/cross_entropy.h"

// N tokens, D hidden, M supervised tokens.
namespace lora_train::run {
namespace {

/// Input and outputs of the loss head for a micro-batch.
struct HeadPass {
  HeadPass(StepContext& context, const model::Batch& batch)
      : hidden(context.activations.final_hidden.narrow(0, 0, batch.num_tokens())),
        d_hidden(context.activations.d_hidden.narrow(0, 0, batch.num_tokens())),
        loss_sum(context.scalars.device()[optim::kLossSum]),
        denominator(context.scalars.device()[optim::kLossDenominator]) {}

  at::Tensor hidden, d_hidden;  ///< [N, D]
  at::Tensor loss_sum, denominator;
};

void enqueue_nll(StepContext& context, const model::Batch& batch) {
  model::decoder_forward(context.decoder, batch, context.activations);
  HeadPass head(context, batch);
  context.loss_head.train(head.hidden, batch, head.denominator, head.loss_sum, head.d_hidden);
  model::decoder_backward(context.decoder, batch, context.activations);
}

void enqueue_nll_chunk(StepContext& context, const model::Batch& batch) {
  at::Tensor loss_sum = context.scalars.device()[optim::kLossSum];
  context.loss_head.train_next(context.activations.final_hidden, batch,
                               context.scalars.device()[optim::kLossDenominator], loss_sum,
                               context.activations.d_hidden);
}

/// Dynamic Fine-Tuning (arXiv 2508.05629; TRL's loss_type: dft): the sum of -weight * p * log p, with p as a constant. Its
/// gradient is that of cross entropy with token weights weight * p.
void enqueue_dft(StepContext& context, const model::Batch& batch) {
  model::decoder_forward(context.decoder, batch, context.activations);
  HeadPass head(context, batch);
  const std::int64_t M = batch.num_trained_tokens();
  at::Tensor log_probs = context.token_buffers[0].narrow(0, 0, M), weights = context.token_buffers[1].narrow(0, 0, M);
  context.loss_head.log_probs(head.hidden, batch, log_probs);
  at::exp_out(weights, log_probs);
  if (batch.weights.defined()) weights.mul_(batch.weights.narrow(0, 0, M));
  kernels::add_losses(log_probs.neg_(), weights, head.loss_sum);
  context.loss_head.backward(head.hidden, batch, weights, head.denominator, head.d_hidden);
  model::decoder_backward(context.decoder, batch, context.activations);
}

/// The divergence from a teacher, mixed with cross entropy.
void enqueue_kl(StepContext& context, const model::Batch& batch) {
  if (!batch.soft.ids.defined()) return enqueue_nll(context, batch);
  model::decoder_forward(context.decoder, batch, context.activations);
  HeadPass head(context, batch);
  const kernels::SoftTargetOptions options{context.objective.kd_temperature, context.objective.kd_alpha};
  context.loss_head.train_soft(head.hidden, batch, options, head.denominator, head.loss_sum, head.d_hidden);
  model::decoder_backward(context.decoder, batch, context.activations);
}

constexpr Objective kObjectives[] = {
    {LossType::kNll, enqueue_nll, enqueue_nll_chunk},
    {LossType::kDft, enqueue_dft, nullptr, /*num_token_buffers=*/2},
    {LossType::kKl, enqueue_kl, nullptr, /*num_token_buffers=*/0},
};

}  // namespace

const Objective& objective_for(LossType type) {
  return *std::find_if(std::begin(kObjectives), std::end(kObjectives),
                       [type](const Objective& objective) { return objective.type == type; });
}

std::vector<at::Tensor> make_token_buffers(const Objective& objective, std::int64_t max_tokens, at::Device device) {
  std::vector<at::Tensor> buffers;
  for (int i = 0; i < objective.num_token_buffers; ++i) {
    buffers.push_back(at::empty({max_tokens}, at::TensorOptions(at::kFloat).device(device)));
  }
  return buffers;
}

}  // namespace lora_train::run
