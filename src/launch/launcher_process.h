// A name for the jobs of launchers that give them none.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::launch {

/// "4711-98765": pid and start time of the nearest ancestor of this process that has one of these names (as in /proc/pid/stat, 15
/// characters). Empty if there is none. `proc` is /proc.
std::string launcher_process(const std::vector<std::string>& names, const std::filesystem::path& proc);

}  // namespace lora_train::launch
