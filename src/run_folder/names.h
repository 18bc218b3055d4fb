// The names of what a run writes to its folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::run_folder {

/// Whether a run gives something this name.
bool is_run_file(const std::string& name);

/// Whether `name` ("adapter" or "model") in `folder` is the result that the run there wrote or would write.
bool is_result_of_run(const std::filesystem::path& folder, const std::string& name);

/// What the run in `folder` has written, by name; the marker comes last. Empty if there is no run.
std::vector<std::string> files_of_run(const std::filesystem::path& folder);

}  // namespace lora_train::run_folder
