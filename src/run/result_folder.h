// The result of a run: adapter/ (a PEFT folder with tokenizer files and model card) or model/ (a Hugging Face folder).
#pragma once

#include "lora_train/report/summary.h"
#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// Writes the last step, or with load_best_model_at_end the best one, from its checkpoint, and names both in `summary`.
/// The folder gets a temporary name and is then renamed, replacing an older one; files that others put there move to
/// the new one. generation_config.json lists the token that ends a trained answer before the model's end tokens. Reads
/// new tokens and their rows back and compares them. Throws IoError, NumericError if a value is not finite, and
/// FormatError if that comparison fails or the best checkpoint is damaged.
void write_result(const Run& run, report::RunSummary& summary);

/// What a run adds to output_dir besides logs, in bytes.
struct DiskNeed {
  std::int64_t checkpoint = 0, result = 0;
  std::int64_t num_checkpoints = 0;  ///< most at a time, the one being written included; 0 if no steps are left
  bool makes_room = false;           ///< something older is deleted once the first checkpoint is complete
};

/// Throws IoError if `free` bytes do not hold one checkpoint and the result. Returns a warning with both sums if they do
/// not hold all checkpoints, else nothing.
std::string check_disk_space(const std::filesystem::path& output_dir, const DiskNeed& need, std::int64_t free);

/// The same before step 1; logs the warning. `overwrites`: the run replaces one that is there.
void check_disk_space(const Run& run, bool overwrites);

}  // namespace lora_train::run
