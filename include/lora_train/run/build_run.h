// From a request to a run that is ready for step 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// How the weights of the run are loaded. run.spec must be filled.
plan::LoadOptions load_options(const Run& run);

/// Sets run.spec from run.facts, and starts run.tuning, which chooses the row pitch of buffers with adapter columns unless
/// `row_pitch` is given. Call it before loading weights.
void decide_spec(Run& run, std::optional<model::RowPitch> row_pitch = {});

/// Decides what run.spec leaves open: the rows of a loss chunk, and, if run.tuning is set, the attention backends; by measuring if
/// it is. Call it after loading weights and before allocating buffers.
void tune_spec(Run& run);

/// Allocates what run.spec describes: buffers, feed and scalars, and the context of a step. Model, plan and training data must
/// be ready. Peaks of device memory begin anew: from here on they are those of training.
void allocate(Run& run);

/// From run.facts to buffers: decides, plans the data, loads the weights, and restores the checkpoint of run.resumed. May be called
/// again.
void build_from_facts(Run& run);

/// Opens what `request` names: model, device, adapters, data and tasks; every rank the same. `checkpoint`: what it resumes from.
/// Throws what opening throws, and ConfigError where ranks differ.
OpenedRun open_run(const TrainRequest& request, const std::shared_ptr<ranks::Communicator>& ranks,
                   const std::shared_ptr<report::RunClock>& clock,
                   const std::optional<std::filesystem::path>& checkpoint);

/// A run that is ready for step 1: opened, decided and loaded, and restored from `checkpoint` if given.
Run build_run(const TrainRequest& request, const std::shared_ptr<ranks::Communicator>& ranks,
              const std::shared_ptr<report::RunClock>& clock, const std::optional<std::filesystem::path>& checkpoint);

}  // namespace lora_train::run
