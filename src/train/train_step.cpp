#include "train_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/optim/grad_clip.h"

namespace lora_train::train {
namespace {

[[noreturn]] void refuse_non_finite(const StepContext& context, const data::StepPlan& plan, const StepResult& result) {
  std::vector<std::uint32_t> documents;
  for (const auto& micro : plan.micro_batches) {
    documents.insert(documents.end(), micro.documents.begin(), micro.documents.end());
  }
  throw NumericError("step " + std::to_string(plan.step),
                     "loss " + std::to_string(result.loss) + ", gradient norm " + std::to_string(result.grad_norm) +
                         ": not finite. Nothing was updated. Rows of this step: " +
                         name_rows(context.documents, documents) +
                         ". Look at these rows and at the base weights; a lower learning_rate, warmup_ratio or max_grad_norm often helps");
}

/// Gradients of the whole step, and their norm: everything before the update.
double accumulate_gradients(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next,
                            double learning_rate) {
  context.scalars.begin(optim::first_scalars(plan.step, plan.num_supervised, learning_rate, context.adamw));
  context.weights.parameters().grads.zero_();
  at::Tensor loss_sum = context.scalars.device()[optim::kLossSum];
  double data_wait_ms = 0;
  for (std::size_t i = 0; i < plan.micro_batches.size(); ++i) {
    throw_if_stop_requested();
    const auto start = std::chrono::steady_clock::now();
    model::Batch batch = context.feed.put(*next());
    batch.dropout.seed = context.seed;
    batch.dropout.step = plan.step;
    data_wait_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

    model::decoder_forward(context.decoder, batch, context.activations);
    const int64_t N = batch.num_tokens();
    at::Tensor d_hidden = context.activations.d_hidden.narrow(0, 0, N);
    context.loss_head.train(context.activations.final_hidden.narrow(0, 0, N), batch,
                            1.0 / static_cast<double>(plan.num_supervised), loss_sum, d_hidden);
    model::decoder_backward(context.decoder, batch, context.activations);
  }
  optim::measure_gradients(context.weights.parameters().grads, context.max_grad_norm, context.scalars.device());
  return data_wait_ms;
}

}  // namespace

NextMicroBatch build_in_place(const data::DocumentStore& store, const data::StepPlan& plan) {
  struct Place {
    data::HostBuffer buffer;
    data::MicroBatch batch;
    std::size_t next = 0;
  };
  return [&store, &plan, place = std::make_shared<Place>()] {
    place->batch = data::build_micro_batch(store, plan.micro_batches[place->next++], place->buffer);
    return std::shared_ptr<const data::MicroBatch>(place, &place->batch);
  };
}

std::string name_rows(const data::DocumentStore& store, std::span<const std::uint32_t> documents) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> rows;
  for (const std::uint32_t document : documents.first(std::min(kShown, documents.size()))) {
    rows.push_back(store.source(document));
  }
  return join(rows) + (documents.size() > kShown ? ", ..." : "");
}

double ask_for_gradients(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next) {
  const double data_wait_ms = accumulate_gradients(context, plan, next, 0);
  context.scalars.end();
  return data_wait_ms;
}

double ask_for_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next, double learning_rate) {
  const double data_wait_ms = accumulate_gradients(context, plan, next, learning_rate);
  model::Parameters& parameters = context.weights.parameters();
  context.is_updating = true;
  optim::adamw_step(parameters.values, parameters.grads, parameters.exp_avg, parameters.exp_avg_sq, context.adamw,
                    parameters.num_decayed(), context.scalars.device());
  context.weights.refresh();
  context.is_updating = false;
  context.scalars.end();
  return data_wait_ms;
}

StepResult receive_step(StepContext& context, const data::StepPlan& plan) {
  const auto scalars = context.scalars.receive();
  StepResult result;
  result.loss = scalars[optim::kLossSum] / static_cast<double>(plan.num_supervised);
  result.grad_norm = scalars[optim::kGradNorm];
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) refuse_non_finite(context, plan, result);
  return result;
}

}  // namespace lora_train::train
