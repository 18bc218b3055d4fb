// What in the folders of a run is the run's, and what others have put there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::run_folder {

/// The names of the entries of a folder in a run folder (checkpoint-<step>, adapter, model, tensorboard, also under a temporary
/// name) that a run writes.
std::vector<std::string> own_entries(const std::filesystem::path& folder);

}  // namespace lora_train::run_folder
