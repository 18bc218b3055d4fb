// The names of all that a run writes to its folder: which entries are the run's, and which are others'.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::run_folder {

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
