// Where this program is, and where Python packages are whose libraries it loads. Nothing of them is imported.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train {

/// Folder of the executable: configs/ and lib/ are in it.
std::filesystem::path program_folder();

/// The folder of a package that the build wrote to lib/<name>_path beside the program; empty if there is no such file.
std::filesystem::path package_of_build(const std::string& name);

/// python3 of $VIRTUAL_ENV, of $CONDA_PREFIX and of $PATH, those that are set.
std::vector<std::string> python_programs();

/// The folder that `python` would import `package` from; empty when it has none or cannot be started.
std::filesystem::path find_python_package(const std::string& python, const std::string& package);

}  // namespace lora_train
