// One optimizer step, top to bottom: micro-batches forward and backward, clip, update.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lora_train/data/micro_batch.h"
#include "lora_train/data/plan.h"
#include "lora_train/model/activations.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/resident_weights.h"
#include "lora_train/optim/adamw.h"

namespace lora_train::train {

/// Gives the micro-batches of a step, one after the other.
using NextMicroBatch = std::function<std::shared_ptr<const data::MicroBatch>()>;

/// Builds them in the calling thread. Store and plan outlive it.
NextMicroBatch build_in_place(const data::DocumentStore& store, const data::StepPlan& plan);

/// What one forward sees, on the device of the model.
model::Batch make_batch(const data::MicroBatch& micro_batch);

/// The first five of these documents as "file:line, file:line, ...", for messages.
std::string name_rows(const data::DocumentStore& store, std::span<const std::uint32_t> documents);

/// Parts of a run that a step works on; all outlive it.
struct StepContext {
  const data::DocumentStore& documents;
  model::Decoder& decoder;
  model::ResidentWeights& weights;
  model::Activations& activations;
  model::LossHead& loss_head;
  optim::AdamWOptions adamw;
  double max_grad_norm = 0;
  std::uint64_t seed = 0;
  bool has_dropout = false;
  bool is_updating = false;  ///< true once an update has begun that did not come to its end
  at::Tensor scalars{};      ///< optim/step_scalars.h, made by the first step
};

struct StepResult {
  double loss = 0;       ///< sum over supervised tokens / their number in the whole step
  double grad_norm = 0;  ///< before clipping
  double data_wait_ms = 0;
};

/// Gradients of the whole step into the flat gradient buffer (zeroed first). Throws StopError between micro-batches.
StepResult accumulate_gradients(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next);

/// accumulate_gradients, then the update. Throws NumericError before anything is updated when loss or gradient norm is
/// not finite, naming the step and its first rows.
StepResult train_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next, double learning_rate);

}  // namespace lora_train::train
