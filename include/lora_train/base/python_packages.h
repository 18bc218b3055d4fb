// Finds this program and the Python packages whose libraries it loads. Imports none of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train {

/// Folder of the executable: configs/ and lib/ are in it.
std::filesystem::path program_folder();

/// The folder of a package that the build wrote to lib/<name>_path next to the program; empty if there is no such file.
std::filesystem::path package_of_build(const std::string& name);

/// python3 in $VIRTUAL_ENV, $CONDA_PREFIX and $PATH, as far as they are set.
std::vector<std::string> python_programs();

/// The folder that `python` would import `package` from; empty if there is none or `python` cannot be started.
std::filesystem::path find_python_package(const std::string& python, const std::string& package);

}  // namespace lora_train
