// Decides what `train` does with output_dir: resume by default, and never overwrite without --overwrite
// (docs/durability.md). An overwritten run is set aside until the new one is done.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::run_folder {

/// The flags and the profile to decide from.
struct OutputRequest {
  Profile& profile;                               ///< if the run resumes, `auto` becomes the old run's numbers
  const std::vector<std::string>& allow_changed;  ///< keys given with --allow-changed
  bool overwrite = false;
};

/// What to do with output_dir.
struct OutputDecision {
  bool is_complete = false;                         ///< the folder has a finished run with this profile: nothing to do
  std::optional<std::filesystem::path> checkpoint;  ///< resume from here; if empty, start a new run
  bool goes_back = false;                           ///< --resume named the checkpoint: later ones here are obsolete
  bool overwrites = false;           ///< replace the existing run; false if --overwrite has already begun it
  std::vector<std::string> changes;  ///< "key: old -> new" for keys that differ only because of allow_changed
  std::string summary_json;          ///< from the finished run, if is_complete
};

/// Decides without changing anything on disk. A run that never saved a checkpoint (none in the folder, none in
/// metrics.jsonl) starts over from step 0, with a warning if it had finished steps.
/// Throws ConfigError
/// - if the profile differs from the old run's in a key that must not change, with a line "key: old -> new" for each
///   such key;
/// - if resume_from_checkpoint names a checkpoint older than the newest good one there, unless the run began with it,
///   or resume_from_checkpoint is in allow_changed;
/// - if the run would overwrite or delete its own model, adapter, template or data;
/// - if the folder has an entry with a name that runs use but that no run has written, or a link of such a name. Only a
///   folder with our run.json contains a run (run_marker.h).
/// Throws FormatError if the existing run has no good checkpoint.
OutputDecision look_at_output_folder(const OutputRequest& request);

/// The same, then creates the folder, marks it as a run's, and deletes half-written files of dead processes.
OutputDecision prepare_output_folder(const OutputRequest& request);

/// The section's run_name, else the last part of output_dir.
std::string run_name(const RunSection& section);

/// True if summary.json in the folder has the status "done".
bool holds_done_summary(const std::filesystem::path& folder);

/// Name of the result folder: "adapter", or "model" with adapter: none.
const char* result_name(AdapterKind adapter);

/// Moves what the run in `folder` has written, and nothing else, into folder/.lora-train-replaced, and marks `folder`
/// as that of a new run. If an earlier run is already set aside, deletes the later one instead, unless it has saved a
/// checkpoint. The next call completes an interrupted one. No effect on a folder without a run. Throws IoError.
void set_run_aside(const std::filesystem::path& folder);

/// Deletes the replaced run. Files that others put in its folders move to the folders of the same names in `folder`, or
/// stay if there is none yet. Warns if it fails.
void delete_replaced_run(const std::filesystem::path& folder);

/// The names of the entries that a run writes in a subfolder of its folder (checkpoint-<step>, adapter, model,
/// tensorboard, also under a temporary name).
std::vector<std::string> own_entries(const std::filesystem::path& folder);

}  // namespace lora_train::run_folder
