// The folder that a merge writes: where it may be, and which files of other folders go along. No torch here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/storage/atomic_folder.h"

namespace lora_train::lora {

enum class OutputKind { kModel, kAdapter };

/// The absolute path to write to, its parents made, leftovers of merges that were killed deleted. Throws ConfigError when it is one of the
/// inputs or holds one, when it is a file, or holds anything without `overwrite`; or with it anything but such a folder.
std::filesystem::path claim_output(const std::filesystem::path& asked, OutputKind kind,
                                   const std::vector<std::filesystem::path>& inputs, bool overwrite);

/// Plain files of a folder that say something about it (.json, .txt, .jinja, .model, .tiktoken, licences), sorted by name;
/// not weights, not their index, nothing hidden.
std::vector<std::string> companion_files(const std::filesystem::path& folder);

/// The file to be written as it is.
storage::FileToWrite copy_of(const std::filesystem::path& file);

}  // namespace lora_train::lora
