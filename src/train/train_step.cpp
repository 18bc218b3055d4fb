#include "lora_train/train/train_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/optim/grad_clip.h"
#include "objective.h"

namespace lora_train::train {
namespace {

[[noreturn]] void refuse_non_finite(const StepContext& context, const data::StepPlan& plan, const StepResult& result) {
  std::vector<std::uint32_t> documents;
  for (const auto& micro : plan.micro_batches) {
    documents.insert(documents.end(), micro.documents.begin(), micro.documents.end());
  }
  throw NumericError(
      "step " + std::to_string(plan.step),
      "loss " + std::to_string(result.loss) + ", gradient norm " + std::to_string(result.grad_norm) +
          ": not finite. Nothing was updated. Rows of this step: " + data::name_rows(context.documents, documents) +
          ". Look at these rows and at the base weights; a lower learning_rate, warmup_ratio or max_grad_norm often "
          "helps");
}

std::vector<PhiloxKey> dropout_keys(const StepContext& context, std::int64_t step) {
  std::vector<PhiloxKey> keys;
  for (const std::string& path : context.dropout_paths) {
    keys.push_back(philox_key(context.seed, RandomPurpose::kLoraDropout, path, static_cast<std::uint64_t>(step)));
  }
  return keys;
}

void enqueue_micro_batch(StepContext& context, const model::Batch& batch, int class_index) {
  if (context.graphs != nullptr && context.graphs->has(class_index)) {
    return context.graphs->replay(class_index, context.loss_head.num_chunks(batch));
  }
  objective_for(context.objective.loss_type).enqueue_gradients(context, batch);
}

}  // namespace

void enqueue_forward(StepContext& context, const model::Batch& batch) {
  model::decoder_forward(context.decoder, batch, context.activations);
  at::Tensor d_hidden = context.activations.d_hidden.narrow(0, 0, batch.num_tokens());
  context.loss_head.begin(d_hidden);
}

void enqueue_backward(StepContext& context, const model::Batch& batch) {
  model::decoder_backward(context.decoder, batch, context.activations);
}

void enqueue_update(StepContext& context) {
  model::Trainables& parameters = context.parameters;
  optim::measure_gradients(parameters.grads, context.max_grad_norm, context.scalars.device());
  context.optimizer.update(parameters.values, parameters.grads, context.adamw, parameters.blocks(),
                           context.scalars.device());
  context.weights.refresh();
}

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

double train_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next, Update update) {
  at::Tensor& scalars = context.scalars.device();
  context.scalars.begin(plan.step, plan.weight_sum, context.schedule, context.adamw, dropout_keys(context, plan.step));
  context.parameters.grads.zero_();
  double data_wait_ms = 0;
  for (std::size_t i = 0; i < plan.micro_batches.size(); ++i) {
    throw_if_stop_requested();
    const auto start = std::chrono::steady_clock::now();
    const std::shared_ptr<const data::MicroBatch> micro_batch = next();
    const int class_index = context.feed.class_of(*micro_batch);
    model::Batch batch = context.feed.put(*micro_batch, class_index);
    batch.dropout.keys = context.scalars.dropout_keys();
    data_wait_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    enqueue_micro_batch(context, batch, class_index);
  }
  context.ranks.sum(std::array{context.parameters.grads, scalars[optim::kLossSum]});
  if (update == Update::kSkip) {
    optim::measure_gradients(context.parameters.grads, context.max_grad_norm, scalars);
  } else {
    context.is_updating = true;
    context.graphs != nullptr ? context.graphs->update() : enqueue_update(context);
    context.is_updating = false;
  }
  context.scalars.end();
  return data_wait_ms;
}

StepResult wait_for_step(StepContext& context, const data::StepPlan& plan) {
  const auto scalars = context.scalars.wait();
  StepResult result;
  result.loss = scalars[optim::kLossSum] / plan.weight_sum;
  result.grad_norm = scalars[optim::kGradNorm];
  result.learning_rate = scalars[optim::kLearningRate];
  result.zeroed_moments = scalars[optim::kZeroedMoments];
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) refuse_non_finite(context, plan, result);
  return result;
}

}  // namespace lora_train::train
