// Folders that appear whole or not at all: a checkpoint, the result of a run.
#pragma once

#include <filesystem>

namespace lora_train::storage {

/// A folder that is filled under a temporary name beside `target` (".tmp-<name>-<pid>") and takes its place in one
/// step. Destroyed before commit() it leaves nothing behind. Not thread-safe.
class AtomicFolder {
 public:
  /// Creates the temporary folder, in place of one that a process of the same number left. Throws IoError.
  explicit AtomicFolder(std::filesystem::path target);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// The temporary folder: write here.
  const std::filesystem::path& path() const { return temporary_; }

  /// Syncs every file and folder below path(), exchanges it for the folder that `target` names, if there is one, syncs
  /// the parent and deletes the old folder. A reader sees the old folder or the new one. Throws IoError.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
};

}  // namespace lora_train::storage
