// One optimizer step (forward and backward of its micro-batches, clip, update), its captured graphs, and the table of
// objectives.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/plan/micro_batch.h"
#include "lora_train/data/plan/plan.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/model/batch.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/optim/lr_schedule.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/plan/setup/batch_feed.h"
#include "lora_train/ranks/communicator.h"
#include "lora_train/run/step_scalars.h"

namespace lora_train::run {

struct StepContext;

class StepGraphs {
 public:
  /// `batches` maps a class index to a batch of that class on the device, with its dropout keys set. Before this call,
  /// each batch and an update must have run once without graphs, frozen. The objective must have enqueue_loss_chunk.
  /// Adds to loss and gradients. Throws DeviceError if CUDA refuses.
  StepGraphs(StepContext& context, const std::map<int, model::Batch>& batches);

  bool has(int class_index) const { return bodies_.contains(class_index); }
  /// Computes the gradients of the micro-batch that BatchFeed last put into this class.
  void replay(int class_index, std::int64_t num_chunks);
  void update();

 private:
  struct Body {
    model::Batch batch;  ///< the graphs read its memory
    std::unique_ptr<kernels::Graph> forward, backward;
  };
  std::map<int, Body> bodies_;
  std::unique_ptr<kernels::Graph> losses_, update_;
};

/// Returns the next micro-batch of a step.
using NextMicroBatch = std::function<std::shared_ptr<const data::MicroBatch>()>;

/// Builds the micro-batches of `plan` in the calling thread. Store and plan must outlive it.
NextMicroBatch build_in_place(const data::DocumentStore& store, const data::StepPlan& plan);

/// The parts of a run that a step uses. All must outlive it.
struct StepContext {
  const data::DocumentStore& documents;
  model::Decoder& decoder;
  model::Trainables& parameters;
  model::BaseWeights& weights;
  model::Activations& activations;
  model::LossHead& loss_head;
  plan::BatchFeed& feed;
  StepScalars& scalars;
  optim::OptimizerState& optimizer;
  ranks::Communicator* ranks = nullptr;  ///< the ranks that a step sums over
  const ObjectiveSection& objective;
  optim::LrSchedule schedule;
  optim::AdamWOptions adamw;
  double max_grad_norm = 0;
  std::uint64_t seed = 0;
  std::vector<std::string>
      dropout_paths{};  ///< paths of all adapters if dropout is on, else empty; they name the random streams
  std::vector<at::Tensor> token_buffers{};  ///< scratch of the objective, [max_tokens] fp32 each
  std::unique_ptr<StepGraphs> graphs{};     ///< if null, every micro-batch runs without graphs
  bool is_updating =
      false;  ///< true while an update is being enqueued; if interrupted then, the state is neither old nor new
};

/// The parts of a step that StepGraphs captures, in addition to the objective's loss chunk. Each enqueues the same work
/// for all micro-batches of a batch class.
void enqueue_forward(StepContext& context, const model::Batch& batch);
void enqueue_backward(StepContext& context, const model::Batch& batch);
void enqueue_update(StepContext& context);

enum class Update { kApply, kSkip };

/// Runs one optimizer step: forward and backward of its micro-batches, sums over ranks, clipping, update. On a GPU,
/// returns once the step is enqueued; the device stops updating after the first loss or gradient norm that is not
/// finite. Throws StopError between micro-batches, before anything is updated. kSkip leaves the gradients of the whole
/// step in the flat gradient buffer. Returns the milliseconds spent waiting for data.
/// `figures`: this rank's, without the times.
double train_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next,
                  Update update = Update::kApply, RankFigures figures = {});

struct StepResult {
  double loss = 0;       ///< weighted mean over the supervised tokens of the whole step
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double zeroed_moments = 0;         ///< adamw_8bit: share of 8-bit second moments above 0 that got the code of 0
  std::vector<RankFigures> ranks{};  ///< figures of all ranks
};

/// Waits for the oldest enqueued step, whose plan is `plan`. Throws NumericError, naming the step and its first
/// examples, if the loss or the gradient norm is not finite; in that case neither this step nor a later one has updated
/// anything.
StepResult wait_for_step(StepContext& context, const data::StepPlan& plan);

/// A row of the table of objectives in train_step.cpp.
struct Objective {
  LossType type;
  /// Enqueues the forward and backward passes of a micro-batch. Adds its loss to kLossSum, and the gradients of its
  /// loss divided by kLossDenominator to those of the parameters.
  void (*enqueue_gradients)(StepContext& context, const model::Batch& batch);
  /// Enqueues the next chunk of the loss, between enqueue_forward and enqueue_backward, for StepGraphs to capture. If
  /// null, the objective runs without graphs.
  void (*enqueue_loss_chunk)(StepContext& context, const model::Batch& batch) = nullptr;
  int num_token_buffers = 0;  ///< number of StepContext::token_buffers it uses
};

const Objective& objective_for(LossType type);

/// Allocates StepContext::token_buffers: `num_token_buffers` tensors [max_tokens] fp32.
std::vector<at::Tensor> make_token_buffers(const Objective& objective, std::int64_t max_tokens, at::Device device);

}  // namespace lora_train::run
