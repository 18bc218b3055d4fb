// Finds LibTorch, and loads the engine, the part of the program that links it, when a command needs it.
#pragma once

#include <filesystem>
#include <string>

#include "engine_api.h"

namespace lora_train::cli {

/// A torch wheel as pip unpacks it.
struct TorchInstallation {
  std::filesystem::path folder;  ///< site-packages/torch; libraries are in folder/lib
  std::string version;           ///< "2.11.0+cu130"
  std::string cuda;              ///< "13.0"; empty for a CPU build
  std::string found_by;          ///< "$LORA_TRAIN_TORCH", "lib/torch_path", "/venv/bin/python3"
};

/// Looks, in this order, at $LORA_TRAIN_TORCH (the torch folder or its lib folder; if set, only there), at the folder
/// named in lib/torch_path with the engine (written by the build), and at what python3 of $VIRTUAL_ENV, $CONDA_PREFIX
/// and $PATH would import (without importing torch itself). Takes the first of version 2.11.x. Throws ConfigError that
/// says what was found where, and what to do.
TorchInstallation find_torch();

/// Reads folder/version.py. `folder` may be the wheel's lib. Throws ConfigError(found_by) if it holds no torch wheel.
TorchInstallation read_torch_folder(std::filesystem::path folder, const std::string& found_by);

/// Loads LibTorch, as find_torch() finds it, and the program's lib/liblora_train_engine.so. Loads them once; later
/// calls return the same table. First sets GOMP_SPINCOUNT, unless it or OMP_WAIT_POLICY is set. Not thread-safe. Throws
/// ConfigError if LibTorch or the engine cannot be loaded, or if the engine is from another build.
const EngineApi& load_engine();

}  // namespace lora_train::cli
