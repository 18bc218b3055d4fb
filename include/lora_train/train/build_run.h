// From a request to a run that is ready for step 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "lora_train/train/run_state.h"

namespace lora_train::train {

/// What decide() is to know of a run whose model, adapters, data and device are there.
planner::RunFacts facts_of(const Run& run);

/// Where run.tuning says so, settles by measuring what run.spec leaves open: the attention backends and the rows of a chunk
/// of the loss head. Weights are there, buffers are not. chunk_rows: those of before, for a run that goes on, else 0.
void tune_spec(Run& run, std::int64_t chunk_rows);

/// Makes what run.spec describes: buffers, feed and scalars, and the context of a step over them. Model, plan and training
/// data are there.
void allocate(Run& run);

/// Everything up to step 1; resumes from `checkpoint` when there is one.
std::unique_ptr<Run> build_run(const TrainRequest& request, const std::optional<std::filesystem::path>& checkpoint);

}  // namespace lora_train::train
