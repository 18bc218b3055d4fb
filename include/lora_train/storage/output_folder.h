// The model or adapter folder that a command writes: where it may be, and which files it copies from other folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/storage/atomic_folder.h"

namespace lora_train::storage {

enum class OutputKind { kModel, kAdapter };

/// The absolute path to write to, with an AtomicFolder. Creates its parents and deletes leftovers of killed commands. Throws
/// ConfigError if it is one of the inputs or holds one; if it is a file; if it is not empty and `overwrite` is not set; or if `overwrite` is set and it holds
/// anything but weights, their index, config and companion files.
std::filesystem::path claim_output(const std::filesystem::path& requested, OutputKind kind,
                                   const std::vector<std::filesystem::path>& inputs, bool overwrite);

/// The files to copy beside the weights (.json, .txt, .jinja, .model, .tiktoken, licences), sorted by name: neither weights nor
/// their index, and no hidden files.
std::vector<std::string> companion_files(const std::filesystem::path& folder);

/// A copy of the file, ready to write.
FileToWrite copy_of(const std::filesystem::path& file);

}  // namespace lora_train::storage
