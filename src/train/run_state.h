// A run in memory: what build_run makes and the training loop works on.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/data/run_plan.h"
#include "lora_train/metrics/metrics_writer.h"
#include "lora_train/metrics/progress_bar.h"
#include "lora_train/metrics/summary.h"
#include "lora_train/metrics/tensorboard.h"
#include "lora_train/optim/lr_schedule.h"
#include "lora_train/train/requests.h"
#include "evaluate.h"
#include "run_spec.h"
#include "setup.h"
#include "startup_times.h"
#include "train_step.h"
#include "tuning.h"

namespace lora_train::train {

using Clock = std::chrono::steady_clock;

/// The micro-batch of a run with the most tokens.
struct LargestMicroBatch {
  data::StepPlan plan;  ///< a step of it alone, that divides by the tokens of its whole step
  std::int64_t num_tokens = 0;
};

struct Run {
  explicit Run(const TrainRequest& train_request) : request(train_request), resolved(train_request.profile) {}
  const TrainRequest& request;
  Profile resolved;  ///< numbers in place of the `auto` that the data decide: what profile.yaml says
  Clock::time_point start = Clock::now();
  StartupTimes startup;
  RunDevice device;
  std::size_t max_steps_in_flight = 0;  ///< steps that the device may be behind: kMaxStepsInFlight of a GPU
  ModelFiles files;
  AdapterSetup adapters;
  data::PreparedData data;
  RunSpec spec;
  std::unique_ptr<data::RunPlan> plan;
  std::vector<std::vector<data::MicroBatchPlan>> eval_plans;  ///< per evaluation set
  std::vector<data::BatchClass> batch_classes;  ///< sizes that a GPU fills micro-batches up to
  LoadedModel model;
  std::unique_ptr<model::Activations> activations;
  std::unique_ptr<model::LossHead> loss_head;
  std::unique_ptr<BatchFeed> feed;
  std::unique_ptr<StepScalars> scalars;
  std::optional<optim::OptimizerState> optimizer;
  optim::LrScheduleOptions schedule;
  std::unique_ptr<Communicator> communicator = std::make_unique<OneRank>();
  std::unique_ptr<StepContext> context;
  checkpoint::Contents checkpoint;  ///< of every checkpoint of the run; state and files come with each
  checkpoint::TrainState state;
  std::unique_ptr<RunTuning> tuning;         ///< null where nothing is chosen by measuring
  std::optional<LargestMicroBatch> largest;  ///< once somebody asked

  const Profile& profile() const { return request.profile; }
  /// In host memory: the run's own on a CPU, else a copy.
  model::Trainables host_parameters() const {
    const model::Trainables& own = *model.parameters;
    return device.is_cuda() ? own.host_copy() : own;
  }
  EvalContext eval_context() const { return {*model.decoder, *activations, *loss_head, *feed}; }
  double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

/// Looked for once.
const LargestMicroBatch& largest_micro_batch(Run& run);

/// What decide() is to know of a run whose model, adapters, data and device are there.
RunFacts facts_of(const Run& run);

/// Where run.tuning says so, settles by measuring what run.spec leaves open: the attention backends and the rows of a chunk
/// of the loss head. Weights are there, buffers are not. chunk_rows: those of before, for a run that goes on, else 0.
void tune_spec(Run& run, std::int64_t chunk_rows);

/// Makes what run.spec describes: buffers, feed and scalars, and the context of a step over them. Model, plan and training
/// data are there.
void allocate(Run& run);

/// Everything up to step 1; resumes from `checkpoint` when there is one.
std::unique_ptr<Run> build_run(const TrainRequest& request, const std::optional<std::filesystem::path>& checkpoint);

/// Where the run writes its numbers. A disk that is full ends no run: what the system refuses is warned of once, kept,
/// and written with the next line that it takes.
class Reporters {
 public:
  Reporters(const Profile& profile, bool quiet);

  /// See MetricsWriter::drop_after. Throws IoError.
  void drop_after(std::int64_t step) { metrics_.drop_after(step); }

  void write(const metrics::TrainRecord& record);
  void write(const metrics::EvalRecord& record);
  void write(const metrics::StartRecord& record);
  void write(const metrics::CheckpointRecord& record);
  void write(const metrics::EndRecord& record);
  /// Tries again what was refused, before a checkpoint is saved that comes after it.
  void flush();

  metrics::ProgressBar bar;

 private:
  metrics::MetricsWriter metrics_;
  std::unique_ptr<metrics::TensorBoardWriter> tensorboard_;
  bool metrics_are_refused_ = false, tensorboard_is_refused_ = false;
};

/// Trains from state.step + 1 to the end or to a stop request; fills what it knows of `summary`.
void train_loop(Run& run, Reporters& reporters, metrics::RunSummary& summary);

}  // namespace lora_train::train
