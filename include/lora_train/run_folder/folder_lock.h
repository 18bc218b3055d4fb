// A lock that allows one run at a time in an output folder.
#pragma once

#include <filesystem>

#include "lora_train/base/file.h"

namespace lora_train::run_folder {

/// Holds output_dir/.lora-train.lock, which names this process, and deletes it on destruction. The lock is the system's
/// (flock), so a file left behind by a killed process does not block a new run.
class FolderLock {
 public:
  /// Creates the folder if it does not exist. Throws ConfigError if another run holds the lock (naming the process), or
  /// if the file is a link or not ours; IoError.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace lora_train::run_folder
