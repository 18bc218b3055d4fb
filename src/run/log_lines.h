// What a run logs before step 1 and at its end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/report/summary.h"
#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// What computes, and which model. Once it is open.
void log_device_and_model(const OpenedRun& run);

/// Steps and batches, the adapter, where the result goes, what memory is saved and how; warns of a run with few steps. Once all is allocated.
void log_start(const Run& run);

/// Whether the plan has steps after the last finished one.
bool has_steps_left(const Run& run);

/// From which step on each of the changed keys counts ("key: old -> new"), if any is left. Once the run is sure to start.
void log_changes(const Run& run, const std::vector<std::string>& changes);

/// Warns if the run does not fit the GPU that its profile is meant for (target_gpu), or is on another one. Once run.spec is decided.
void warn_of_target_gpu(const Run& run);

void log_end(const report::RunSummary& summary, const Profile& profile);

/// Checks the L2 norm of row `id` of an embedding [V, D]. The row looks untrained if its norm is less than half of the norm
/// that 95% of the tokens exceed; or, if rows from num_tokens on belong to no token, if it is no longer than the longest of
/// these and all of them are shorter than 95% of the tokens. Published base models have such rows for chat tokens. Returns
/// what it found, or nothing if the row looks trained. 0 <= id < num_tokens <= V.
std::optional<std::string> looks_untrained(const at::Tensor& embedding, std::int64_t id, std::int64_t num_tokens);

}  // namespace lora_train::run
