// Writes a folder atomically: it appears with all its files or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

/// A file to write: text, or tensors (a safetensors file). The memory of the tensors must live until the file is written.
struct FileToWrite {
  std::string name;
  std::string text;
  std::vector<TensorToWrite> tensors = {};
};

/// Writes files to a temporary folder beside `target` (.tmp-<name>-<process>) and renames it, so that readers see either the
/// old folder or the new one, even after a crash or a power loss. Without commit(), the destructor deletes everything. Not
/// thread-safe.
class AtomicFolder {
 public:
  /// Throws IoError if the temporary folder cannot be created.
  explicit AtomicFolder(std::filesystem::path target);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Reserves disk space for all files, then writes and syncs them one by one. Throws IoError.
  void write(const std::vector<FileToWrite>& files);
  /// Name, size and hash of every file written.
  const std::map<std::string, FileHash>& files() const { return files_; }
  /// Renames the folder to `target`. The destructor deletes an older folder of that name. Throws IoError.
  void commit();
  /// Undoes commit(): restores the older folder, if there was one. Throws IoError.
  void take_back();

 private:
  std::filesystem::path target_, temporary_;
  bool has_replaced_ = false;
  std::map<std::string, FileHash> files_;
};

/// Writes and commits such a folder.
void write_folder(const std::filesystem::path& target, const std::vector<FileToWrite>& files);

/// Renames a folder to a temporary name, then deletes it, so that a crash leaves no partial folder under its name. Throws
/// IoError.
void delete_folder(const std::filesystem::path& folder);

/// Deletes the temporary files and folders in `folder` that dead processes left behind, for entries whose name satisfies
/// is_ours(name). No other process may write to the folder at the same time. Throws IoError.
void delete_temporaries(const std::filesystem::path& folder, const std::function<bool(const std::string&)>& is_ours);

}  // namespace lora_train::storage
