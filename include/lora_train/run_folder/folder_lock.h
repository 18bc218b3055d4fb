// One run at a time in an output folder.
#pragma once

#include <filesystem>

namespace lora_train::run_folder {

/// Holds output_dir/.lock, which names this process, while it lives; the file is gone afterwards. The lock is the
/// system's (flock), so that a file which a killed process left is taken over.
class FolderLock {
 public:
  /// Creates the folder when it is not there. Throws ConfigError, naming the process, while another run holds the lock;
  /// IoError.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace lora_train::run_folder
