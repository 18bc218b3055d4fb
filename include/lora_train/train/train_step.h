// One optimizer step, top to bottom: micro-batches forward and backward, clip, update.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lora_train/data/micro_batch.h"
#include "lora_train/data/plan.h"
#include "lora_train/model/base_weights.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/runtime/batch_feed.h"
#include "lora_train/runtime/communicator.h"
#include "lora_train/train/step_graphs.h"
#include "lora_train/train/step_scalars.h"

namespace lora_train::train {

/// Returns the next micro-batch of a step.
using NextMicroBatch = std::function<std::shared_ptr<const data::MicroBatch>()>;

/// Builds them in the calling thread. Store and plan outlive it.
NextMicroBatch build_in_place(const data::DocumentStore& store, const data::StepPlan& plan);

/// Parts of a run that a step works on; all outlive it.
struct StepContext {
  const data::DocumentStore& documents;
  model::Decoder& decoder;
  model::Trainables& parameters;
  model::BaseWeights& weights;
  model::Activations& activations;
  model::LossHead& loss_head;
  runtime::BatchFeed& feed;
  StepScalars& scalars;
  optim::OptimizerState& optimizer;
  runtime::Communicator& ranks;
  optim::AdamWOptions adamw;
  double max_grad_norm = 0;
  std::uint64_t seed = 0;
  std::vector<std::string>
      dropout_paths{};  ///< of adapters with dropout, all of the model's or none: they name its streams
  std::unique_ptr<StepGraphs> graphs{};  ///< null: every micro-batch is computed as it comes
  bool is_updating =
      false;  ///< true while an update is being enqueued: broken off there, the state is neither old nor new
};

/// The parts of a step that step_graphs captures: the same for all micro-batches, or steps, of a batch class.
void enqueue_forward(StepContext& context, const model::Batch& batch);
void enqueue_loss_chunk(StepContext& context, const model::Batch& batch);
void enqueue_backward(StepContext& context, const model::Batch& batch);
void enqueue_update(StepContext& context);

enum class Update { kApply, kSkip };

/// One optimizer step: forward and backward of its micro-batches, sums over ranks, clipping, update. On a GPU it returns when
/// the step is enqueued; the device itself keeps from updating once a loss or gradient norm was not finite. Throws StopError
/// between micro-batches, and then nothing was updated. kSkip: the gradients of the whole step are left in the flat gradient
/// buffer. Returns the milliseconds it waited for data.
double train_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next, double learning_rate,
                  Update update = Update::kApply);

struct StepResult {
  double loss = 0;       ///< mean over the supervised tokens of the whole step, by their weights
  double grad_norm = 0;  ///< before clipping
};

/// Waits for the oldest enqueued step, which is of this plan. Throws NumericError, naming the step and its first rows,
/// when loss or gradient norm is not finite: neither this step nor a later one has updated anything.
StepResult wait_for_step(StepContext& context, const data::StepPlan& plan);

}  // namespace lora_train::train
