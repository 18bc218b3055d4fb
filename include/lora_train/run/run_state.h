// A run in memory: its inputs, and everything decided and loaded for it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "lora_train/data/prepare.h"
#include "lora_train/evaluate/loss_evaluation.h"
#include "lora_train/evaluate/task_evaluation.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/plan/run_spec.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/plan/tuning/tuning.h"
#include "lora_train/report/run_times.h"
#include "lora_train/report/summary.h"
#include "lora_train/run/background_saver.h"
#include "lora_train/run/run_costs.h"
#include "lora_train/run/run_training.h"
#include "lora_train/run/train_step.h"
#include "lora_train/run_folder/checkpoint.h"

namespace lora_train::run {

using Clock = std::chrono::steady_clock;

/// The micro-batch with the most tokens in a run.
struct LargestMicroBatch {
  data::StepPlan plan;  ///< a step of this micro-batch alone; its loss is divided by the weights of the whole step
  std::int64_t num_tokens = 0;
};

/// The opened inputs of a run. Later decisions do not change them.
struct OpenedRun {
  explicit OpenedRun(const TrainRequest& train_request) : request(train_request) {}
  const TrainRequest& request;
  StartupTimes startup;
  /// Times of this process, which may be older than the run, and of earlier processes of the run.
  std::shared_ptr<report::RunClock> clock = std::make_shared<report::RunClock>();
  /// Usage of this process and, as they report it, of the other ranks. The clock reads it too.
  std::shared_ptr<ResourceWatch> resources = std::make_shared<ResourceWatch>();
  plan::RunDevice device;
  std::size_t max_steps_in_flight = 0;  ///< steps the device may lag behind the host; kMaxStepsInFlight on a GPU
  lora::ModelFiles files;
  plan::AdapterSetup adapters;
  data::PreparedData data;
  std::optional<evaluate::TaskEvaluation> tasks;           ///< empty in bench
  std::optional<std::filesystem::path> checkpoint_folder;  ///< where the run resumes
  std::optional<run_folder::Description> resumed;          ///< describes that checkpoint
  std::int64_t started_at = 0;                             ///< start of the run, seconds since 1970; same on all ranks

  const Profile& profile() const { return request.profile; }
  ranks::Communicator& ranks() const { return *device.ranks; }
  /// True if this rank decides and writes files.
  bool is_leader() const { return ranks().rank() == 0; }
  /// Ends a startup phase, which counts as `phase` of the run.
  void end_phase(const std::string& name, report::Phase phase) { clock->add(phase, startup.end_phase(name)); }
};

/// A run that is ready for a step.
struct Run : OpenedRun {
  /// Gathers the facts of the opened inputs; `build` decides, loads and allocates (build_from_facts() for training).
  Run(OpenedRun&& opened, const std::function<void(Run&)>& build);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  plan::RunFacts facts;  ///< about the opened inputs; decide() reads them
  plan::RunSpec spec;
  std::unique_ptr<data::RunPlan> plan;
  std::vector<std::vector<data::MicroBatchPlan>> eval_plans;  ///< per evaluation set
  std::vector<data::BatchClass> batch_classes;                ///< sizes to which micro-batches are padded on a GPU
  std::int64_t num_micro_batches = 0,
               num_unpadded = 0;  ///< in the plan; those that fit no class. Both 0 without classes
  plan::LoadedModel model;
  plan::DeviceMemory startup_memory;  ///< set by allocate(): peaks during loading and tuning
  std::unique_ptr<model::Activations> activations;
  std::unique_ptr<model::LossHead> loss_head;
  std::unique_ptr<plan::BatchFeed> feed;
  std::unique_ptr<StepScalars> scalars;
  std::optional<optim::OptimizerState> optimizer;
  std::unique_ptr<StepContext> context;
  run_folder::Contents checkpoint;  ///< shared by all checkpoints of the run; each save adds state and files
  run_folder::TrainState state;
  std::unique_ptr<plan::RunTuning> tuning;   ///< null without autotuning
  std::optional<LargestMicroBatch> largest;  ///< set by largest_micro_batch()
  report::StepCapture capture;               ///< set by capture_steps()

  SavedParts saved_parts() const {
    const bool has_adapter = !adapters.specs.empty();
    return {profile().run, has_adapter ? &adapters.config : nullptr, *model.parameters, *optimizer, checkpoint};
  }
  evaluate::EvalContext eval_context(evaluate::OnMicroBatch on_micro_batch = {}) const {
    return {*model.decoder, *activations, *loss_head, *feed, ranks(), std::move(on_micro_batch)};
  }
  evaluate::TaskModel task_model() const { return {device, model, profile().run}; }
};

}  // namespace lora_train::run
