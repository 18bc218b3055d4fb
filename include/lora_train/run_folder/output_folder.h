// Decides what `train` does with output_dir: resume by default, and never overwrite without --overwrite (docs/durability.md).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"

namespace lora_train::run_folder {

/// The flags and profile that decide.
struct OutputRequest {
  Profile& profile;                               ///< going on, its `auto` become the numbers that the old run found
  const std::vector<std::string>& allow_changed;  ///< keys of --allow-changed
  bool overwrite = false;
};

/// What to do with output_dir.
struct OutputDecision {
  bool is_complete = false;                         ///< a finished run with this very profile: nothing to do
  std::optional<std::filesystem::path> checkpoint;  ///< resume from here; otherwise a new run
  bool goes_back = false;                           ///< it was named: later ones of the folder are another future
  std::string summary_json;                         ///< of the finished run, when is_complete
};

/// Looks and changes nothing on disk. A run that never saved a checkpoint (none there, none in metrics.jsonl) is begun anew,
/// with a warning when it had finished steps. Throws ConfigError for a difference that forbids going on, with "key: old -> new"
/// lines and the three ways on; for a model, adapter or template that lies where a run writes or deletes; for files of a run's
/// names in a folder that never held one. FormatError when the run there has no good checkpoint.
OutputDecision look_at_output_folder(const OutputRequest& request);

/// The same, then creates the folder and deletes half-written files of processes that died.
OutputDecision prepare_output_folder(const OutputRequest& request);

/// For --overwrite: deletes the files that a run has written to the folder, and nothing else.
void delete_run(const std::filesystem::path& folder);

/// The section's, else the last part of output_dir.
std::string run_name(const RunSection& section);

/// Whether summary.json in the folder has the status "done".
bool holds_done_summary(const std::filesystem::path& folder);

/// Name of the result folder: "adapter", or "model" with adapter: none.
const char* result_name(AdapterKind adapter);

}  // namespace lora_train::run_folder
