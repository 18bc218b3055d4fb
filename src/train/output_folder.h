// The rules of an output folder (contract.md, section 4): never overwritten unasked, resumed by default.
#pragma once

#include <filesystem>
#include <optional>

#include "lora_train/train/requests.h"

namespace lora_train::train {

/// What to do with output_dir.
struct OutputDecision {
  bool is_complete = false;                         ///< a finished run with this very profile: nothing to do
  std::optional<std::filesystem::path> checkpoint;  ///< resume from here; otherwise a new run
  std::string summary_json;                         ///< of the finished run, when is_complete
};

/// Looks, deletes only under --overwrite (and only what a run writes), creates the folder. Throws ConfigError for a
/// difference that forbids going on, with "key: old -> new" lines and the three ways on; FormatError when the run there
/// has no good checkpoint.
OutputDecision prepare_output_folder(const TrainRequest& request);

}  // namespace lora_train::train
