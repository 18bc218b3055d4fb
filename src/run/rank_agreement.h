// What the ranks of a run compare and decide together.
#pragma once

#include <filesystem>
#include <optional>

#include "lora_train/base/error.h"
#include "lora_train/run/run_state.h"
#include "lora_train/run_folder/output_folder.h"

namespace lora_train::run {

/// The ranks have different parameters: what they hold must not be saved.
class UnequalRanks : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// What rank 0 decided about the output folder, on every rank. Fills what `auto` of the profile becomes, as rank 0 did. The others'
/// `decision` is not looked at.
run_folder::OutputDecision share(ranks::Communicator& ranks, const run_folder::OutputDecision& decision,
                                 Profile& profile);

/// The description of a checkpoint that rank 0 reads.
run_folder::Description share_description(ranks::Communicator& ranks, const std::filesystem::path& checkpoint);

/// When the run began, by the clock of rank 0.
std::int64_t share_start(ranks::Communicator& ranks, std::int64_t started_at);

/// Whether the checkpoint of the best step so far is there, as rank 0 finds; true where the run needs none. Else it warns, or throws
/// FormatError on all ranks if no step is left that could be the best.
bool share_best(const Run& run);

/// Overwrites parameters and optimizer state with those of rank 0.
void share_parameters(Run& run);

/// Program, profile and number of trained parameters must be those of rank 0; throws as check_equal_runs(), which compares what is
/// known later.
void check_equal_starts(const OpenedRun& run);

/// Connects the GPUs, and makes the first collectives with as many numbers as a step has: what NCCL allocates for them is not
/// planned for anything else.
void connect_gpus(const OpenedRun& run);

/// The least memory of all ranks. Those of a host share its memory.
void share_facts(ranks::Communicator& ranks, plan::RunFacts& facts);

/// The spec of rank 0.
void share_spec(ranks::Communicator& ranks, plan::RunSpec& spec);

/// The choices of rank 0, once it has made all of them; the others then start from them. Where nothing is tuned, no collective.
void share_tuning(Run& run);

/// Model, tokenizer, chat template, data and number of steps must be those of rank 0. Throws ConfigError that names the first rank with
/// others, the same on all ranks.
void check_equal_runs(const Run& run);

/// The trained parameters, fp32, must be those of rank 0, bit for bit. Throws UnequalRanks that names the ranks.
void check_equal_parameters(ranks::Communicator& ranks, const at::Tensor& values, std::int64_t step);
inline void check_equal_parameters(const Run& run) {
  check_equal_parameters(run.ranks(), run.model.parameters->values, run.state.step);
}

/// What each rank has used, on every rank (run.resources); but for rank 0, after the last step. The others stop watching.
void share_usage(const Run& run);

/// "training with 4 processes (1 node x 4), global batch 16 = ..."
std::string ranks_in_words(const Run& run);

}  // namespace lora_train::run
