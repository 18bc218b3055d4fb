// Decides what `train` does with output_dir: resume by default, and never overwrite without --overwrite (docs/durability.md). A run
// that is overwritten is set aside until the new one is done.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::run_folder {

/// The flags and profile that decide.
struct OutputRequest {
  Profile& profile;                               ///< going on, its `auto` become the numbers that the old run found
  const std::vector<std::string>& allow_changed;  ///< keys of --allow-changed
  bool overwrite = false;
};

/// What to do with output_dir.
struct OutputDecision {
  bool is_complete = false;  ///< the folder holds a finished run with this profile: nothing to do
  std::optional<std::filesystem::path> checkpoint;  ///< resume from here; empty: start a new run
  bool goes_back = false;                           ///< --resume named the checkpoint: later ones here are obsolete
  bool overwrites = false;           ///< the run there is replaced; false if --overwrite has begun it already
  std::vector<std::string> changes;  ///< "key: old -> new", of the keys that differ only because of allow_changed
  std::string summary_json;          ///< of the finished run, if is_complete
};

/// Decides without changing anything on disk. A run that never saved a checkpoint (none in the folder, none in metrics.jsonl)
/// starts again from step 0, with a warning if it had finished steps.
/// Throws ConfigError
/// - if the profile differs from the old run's in a key that must not change, with a line "key: old -> new" for each such key;
/// - if resume_from_checkpoint names a checkpoint older than the newest good one there, unless the run began with it, or
///   resume_from_checkpoint is in allow_changed;
/// - if the run would overwrite or delete its own model, adapter, template or data;
/// - if the folder holds something under a run's names that no run has written, or a link of such a name. Only a folder with a
///   run.json of ours holds a run (run_marker.h).
/// Throws FormatError if the run there has no good checkpoint.
OutputDecision look_at_output_folder(const OutputRequest& request);

/// The same, then creates the folder, marks it as a run's, and deletes half-written files of processes that died.
OutputDecision prepare_output_folder(const OutputRequest& request);

/// The section's run_name, else the last part of output_dir.
std::string run_name(const RunSection& section);

/// Whether summary.json in the folder has the status "done".
bool holds_done_summary(const std::filesystem::path& folder);

/// Name of the result folder: "adapter", or "model" with adapter: none.
const char* result_name(AdapterKind adapter);

inline constexpr const char* kReplacedFolder = ".lora-train-replaced";

/// Moves what the run in `folder` has written, and nothing else, into folder/.lora-train-replaced, and marks the folder as that
/// of a new run. If that folder keeps an earlier run already, deletes the later one instead, unless it has saved a checkpoint.
/// A call that was interrupted is completed by the next one. No effect on a folder without a run. Throws IoError.
void set_run_aside(const std::filesystem::path& folder);

/// Deletes the replaced run. Files of others in its folders move to the folders of the same names in `folder`, or stay where there
/// is none yet. Warns if it cannot.
void delete_replaced_run(const std::filesystem::path& folder);

/// The names of the entries of a folder in a run folder (checkpoint-<step>, adapter, model, tensorboard, also under a temporary
/// name) that a run writes.
std::vector<std::string> own_entries(const std::filesystem::path& folder);

/// Whether a run gives something this name.
bool is_run_file(const std::string& name);

/// Whether `name` ("adapter" or "model") in `folder` is the result that the run there wrote or would write.
bool is_result_of_run(const std::filesystem::path& folder, const std::string& name);

/// What the run in `folder` has written, by name; the marker comes last. Empty if there is no run.
std::vector<std::string> files_of_run(const std::filesystem::path& folder);

}  // namespace lora_train::run_folder
