// Comparisons and decisions that the ranks of a run make together.
#pragma once

#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/run/run_state.h"
#include "lora_train/run_folder/output_folder.h"

namespace lora_train::run {

/// The ranks have different parameters, which must not be saved.
class UnequalRanks : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// Returns rank 0's decision about the output folder on every rank, and replaces `auto` in the profile as rank 0 did.
/// Ignores the `decision` of other ranks.
run_folder::OutputDecision share(ranks::Communicator& ranks, const run_folder::OutputDecision& decision,
                                 Profile& profile);

/// Rank 0 reads the description of a checkpoint; every rank returns it.
run_folder::Description share_description(ranks::Communicator& ranks, const std::filesystem::path& checkpoint);

/// The start of the run by the clock of rank 0.
std::int64_t share_start(ranks::Communicator& ranks, std::int64_t started_at);

/// True if rank 0 finds the checkpoint of the best step so far, or if the run needs none. Otherwise warns, or throws
/// FormatError on all ranks if no step is left that could be the best.
bool share_best(const Run& run);

/// Overwrites parameters and optimizer state with those of rank 0.
void share_parameters(Run& run);

/// Program, profile and number of trained parameters must equal those of rank 0. Throws like check_equal_runs(), which
/// compares what is known later.
void check_equal_starts(const OpenedRun& run);

/// Connects the GPUs and runs the first collectives at the size of a step, so that NCCL allocates its memory before
/// memory is planned.
void connect_gpus(const OpenedRun& run);

/// Sets the facts to the least memory of all ranks. The ranks of a host share its memory.
void share_facts(ranks::Communicator& ranks, plan::RunFacts& facts);

/// Sets the spec to that of rank 0.
void share_spec(ranks::Communicator& ranks, plan::RunSpec& spec);

/// Sends rank 0's choices, once it has made all of them, to the other ranks, which start from them. No collective if
/// nothing is tuned.
void share_tuning(Run& run);

/// Model, tokenizer, chat template, data and number of steps must equal those of rank 0. Throws the same ConfigError on
/// all ranks, naming the first rank that differs.
void check_equal_runs(const Run& run);

/// The trained parameters (fp32) must equal those of rank 0 bit for bit. Throws UnequalRanks, naming the ranks.
void check_equal_parameters(ranks::Communicator& ranks, const at::Tensor& values, std::int64_t step);
inline void check_equal_parameters(const Run& run) {
  check_equal_parameters(run.ranks(), run.model.parameters->values, run.state.step);
}

/// Shares the usage of each rank with every rank (run.resources) after the last step. All ranks but rank 0 stop
/// watching.
void share_usage(const Run& run);

/// "training with 4 processes (1 node x 4), global batch 16 = ..."
std::string ranks_in_words(const Run& run);

}  // namespace lora_train::run
