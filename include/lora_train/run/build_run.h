// Builds a run that is ready for step 1 from a request.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// How to load the weights of the run. run.spec must be filled.
plan::LoadOptions load_options(const Run& run);

/// Sets run.spec from run.facts and starts run.tuning, which chooses the row pitch of buffers with adapter columns
/// unless `row_pitch` is given. Call it before loading weights.
void decide_spec(Run& run, std::optional<model::RowPitch> row_pitch = {});

/// Decides what run.spec leaves open: the rows of a loss chunk and, if run.tuning is set, the attention backends.
/// Measures both if run.tuning is set. Call it after loading weights and before allocating buffers.
void tune_spec(Run& run);

/// Allocates what run.spec describes: buffers, feed, scalars and the step context. Model, plan and training data must
/// be ready. Resets the peaks of device memory, so that later peaks are those of training.
void allocate(Run& run);

/// Goes from run.facts to buffers: decides, plans the data, loads the weights, and restores the checkpoint of
/// run.resumed. May be called again.
void build_from_facts(Run& run);

/// Opens what `request` names: model, device, adapters, data and tasks, the same on every rank. `checkpoint` is the one
/// to resume from. Throws what opening throws, and ConfigError if ranks differ.
OpenedRun open_run(const TrainRequest& request, const std::shared_ptr<ranks::Communicator>& ranks,
                   const std::shared_ptr<report::RunClock>& clock,
                   const std::optional<std::filesystem::path>& checkpoint);

/// Returns a run that is ready for step 1: opened, decided, loaded, and restored from `checkpoint` if given.
Run build_run(const TrainRequest& request, const std::shared_ptr<ranks::Communicator>& ranks,
              const std::shared_ptr<report::RunClock>& clock, const std::optional<std::filesystem::path>& checkpoint);

}  // namespace lora_train::run
