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

at::Tensor int32_tensor(std::span<const std::int32_t> values) {
  return at::from_blob(const_cast<std::int32_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kInt).clone();
}

model::DropoutContext dropout_context(const StepContext& context, const data::MicroBatch& micro, std::int64_t step,
                                      const at::Tensor& positions) {
  model::DropoutContext dropout;
  if (!context.has_dropout) return dropout;
  dropout.enabled = true;
  dropout.seed = context.seed;
  dropout.step = step;
  dropout.token_position = positions;
  std::vector<std::int32_t> documents;
  for (std::size_t i = 0; i + 1 < micro.cu_seqlens.size(); ++i) {
    documents.insert(documents.end(), static_cast<std::size_t>(micro.cu_seqlens[i + 1] - micro.cu_seqlens[i]),
                     micro.document_in_step[i]);
  }
  dropout.token_document = int32_tensor(documents);
  return dropout;
}

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

model::Batch make_batch(const data::MicroBatch& micro_batch) {
  model::Batch batch;
  batch.ids = int32_tensor(micro_batch.ids);
  batch.positions = int32_tensor(micro_batch.positions);
  std::vector<int64_t> slots;
  std::vector<std::int32_t> targets;
  for (std::size_t i = 0; i < micro_batch.labels.size(); ++i) {
    if (micro_batch.labels[i] == data::kIgnoredLabel) continue;
    slots.push_back(static_cast<int64_t>(i));
    targets.push_back(micro_batch.labels[i]);
  }
  batch.supervised = at::tensor(slots, at::kLong);
  batch.targets = int32_tensor(targets);
  batch.cu_seqlens.assign(micro_batch.cu_seqlens.begin(), micro_batch.cu_seqlens.end());
  return batch;
}

StepResult accumulate_gradients(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next) {
  StepResult result;
  context.weights.parameters().grads.zero_();
  if (!context.scalars.defined()) context.scalars = at::zeros({optim::kNumStepScalars}, at::kDouble);
  at::Tensor loss_sum = context.scalars[optim::kLossSum].zero_();
  for (std::size_t i = 0; i < plan.micro_batches.size(); ++i) {
    throw_if_stop_requested();
    const auto start = std::chrono::steady_clock::now();
    const auto micro = next();
    model::Batch batch = make_batch(*micro);
    batch.dropout = dropout_context(context, *micro, plan.step, batch.positions);
    result.data_wait_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

    model::decoder_forward(context.decoder, batch, context.activations);
    const int64_t N = batch.num_tokens();
    at::Tensor d_hidden = context.activations.d_hidden.narrow(0, 0, N);
    context.loss_head.train(context.activations.final_hidden.narrow(0, 0, N), batch,
                            1.0 / static_cast<double>(plan.num_supervised), loss_sum, d_hidden);
    model::decoder_backward(context.decoder, batch, context.activations);
  }
  result.loss = loss_sum.item<double>() / static_cast<double>(plan.num_supervised);
  optim::measure_gradients(context.weights.parameters().grads, context.max_grad_norm, context.scalars);
  result.grad_norm = context.scalars.const_data_ptr<double>()[optim::kGradNorm];
  return result;
}

StepResult train_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next, double learning_rate) {
  StepResult result = accumulate_gradients(context, plan, next);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) refuse_non_finite(context, plan, result);
  model::Parameters& parameters = context.weights.parameters();
  const auto scalars = optim::first_scalars(plan.step, plan.num_supervised, learning_rate, context.adamw);
  std::copy(scalars.begin(), scalars.end(), context.scalars.mutable_data_ptr<double>());
  context.is_updating = true;
  optim::adamw_step(parameters.values, parameters.grads, parameters.exp_avg, parameters.exp_avg_sq, context.adamw,
                    parameters.num_decayed(), context.scalars);
  context.weights.refresh();
  context.is_updating = false;
  return result;
}

}  // namespace lora_train::train
