// The lines that a run logs before step 1 and at its end.
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

/// Logs the device and the model. Call it once the model is open.
void log_device_and_model(const OpenedRun& run);

/// Logs steps and batches, the adapter, the output folder, and what memory is saved how; warns if the run has few
/// steps. Call it once everything is allocated.
void log_start(const Run& run);

/// True if the plan has steps after the last finished one.
bool has_steps_left(const Run& run);

/// Logs from which step each changed key ("key: old -> new") takes effect, if any step is left. Call it once the run is
/// certain to start.
void log_changes(const Run& run, const std::vector<std::string>& changes);

/// Warns if the run does not fit the GPU that its profile is meant for (target_gpu), or is on another one. Call it once
/// run.spec is decided.
void warn_of_target_gpu(const Run& run);

void log_end(const report::RunSummary& summary, const Profile& profile);

/// Checks the L2 norm of row `id` of an embedding [V, D]. The row looks untrained if its norm is less than half of the
/// norm that 95% of the tokens exceed; or, if rows from num_tokens on belong to no token, if it is no longer than the
/// longest of these and all of them are shorter than 95% of the tokens. Published base models have such rows for chat
/// tokens. Returns the finding, or nothing if the row looks trained. 0 <= id < num_tokens <= V.
std::optional<std::string> looks_untrained(const at::Tensor& embedding, std::int64_t id, std::int64_t num_tokens);

}  // namespace lora_train::run
