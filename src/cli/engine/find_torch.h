// Where LibTorch is on this machine.
#pragma once

#include <filesystem>
#include <string>

namespace lora_train::cli {

/// A torch wheel as pip unpacks it.
struct TorchInstallation {
  std::filesystem::path folder;  ///< site-packages/torch; libraries are in folder/lib
  std::string version;           ///< "2.11.0+cu130"
  std::string cuda;              ///< "13.0"; empty for a CPU build
  std::string found_by;          ///< "$LORA_TRAIN_TORCH", "lib/torch_path", "/venv/bin/python3"
};

/// Looks, in this order, at $LORA_TRAIN_TORCH (the torch folder or its lib folder; decides alone when set), at the
/// folder named in lib/torch_path beside the engine (written by the build), and at what python3 of $VIRTUAL_ENV, of
/// $CONDA_PREFIX and of $PATH would import (torch itself is not imported). Takes the first of version 2.11.x.
/// Throws ConfigError that says what was found where and what to do.
TorchInstallation find_torch();

/// Reads folder/version.py. Throws ConfigError(found_by) when `folder` holds no torch wheel. `folder` may be its lib.
TorchInstallation read_torch_folder(std::filesystem::path folder, const std::string& found_by);

}  // namespace lora_train::cli
