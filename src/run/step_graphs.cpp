#include "lora_train/run/step_graphs.h"

#include "lora_train/run/train_step.h"
#include "objective.h"

namespace lora_train::run {

StepGraphs::StepGraphs(StepContext& context, const std::map<int, model::Batch>& batches) {
  const auto enqueue_loss_chunk = objective_for(context.objective.loss_type).enqueue_loss_chunk;
  // Loads the kernels of a chunk: a step without graphs does not call this function.
  if (!batches.empty()) enqueue_loss_chunk(context, batches.begin()->second);
  for (const auto& [class_index, batch] : batches) {
    Body& body = bodies_[class_index];
    body.batch = batch;
    // Each pass starts without attention's prepared data: temporary memory of one pass is gone in the next.
    const auto record = [&](void (*enqueue)(StepContext&, const model::Batch&)) {
      body.batch.layouts.clear();
      return kernels::capture([&] { enqueue(context, body.batch); });
    };
    body.forward = record(&enqueue_forward);
    if (losses_ == nullptr) losses_ = record(enqueue_loss_chunk);
    body.backward = record(&enqueue_backward);
  }
  update_ = kernels::capture([&] { enqueue_update(context); });
}

void StepGraphs::replay(int class_index, std::int64_t num_chunks) {
  Body& body = bodies_.at(class_index);
  body.forward->replay();
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) losses_->replay();
  body.backward->replay();
}

void StepGraphs::update() { update_->replay(); }

}  // namespace lora_train::run
