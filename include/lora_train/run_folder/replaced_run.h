// The run that --overwrite replaces. It stays in the output folder, aside, until the new run has saved something.
#pragma once

#include <filesystem>

namespace lora_train::run_folder {

inline constexpr const char* kReplacedFolder = ".lora-train-replaced";

/// Moves what the run in `folder` has written, and nothing else, into folder/.lora-train-replaced, and marks the folder as that
/// of a new run. If that folder keeps an earlier run already, deletes the later one instead, unless it has saved a checkpoint.
/// A call that was interrupted is completed by the next one. No effect on a folder without a run. Throws IoError.
void set_run_aside(const std::filesystem::path& folder);

/// Deletes the replaced run. Files of others in its folders move to the folders of the same names in `folder`, or stay where there
/// is none yet. Warns if it cannot.
void delete_replaced_run(const std::filesystem::path& folder);

}  // namespace lora_train::run_folder
