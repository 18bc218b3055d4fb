// The DIR arguments of commands that read past runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::cli {

/// Each is the output_dir of a run, or a folder of such folders; every run once, in this order. Warns of a folder without runs.
/// Throws ConfigError if none has any.
std::vector<std::filesystem::path> find_all_runs(const std::vector<std::string>& names);

}  // namespace lora_train::cli
