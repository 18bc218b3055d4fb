// A folder that appears with all its files or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

/// A file to be written: text, or tensors (a safetensors file). What tensors point to has to live until it is written.
struct FileToWrite {
  std::string name;
  std::string text;
  std::vector<TensorToWrite> tensors = {};
};

/// Writes files into a temporary folder beside `target` (.tmp-<name>-<process>) and renames it: whoever looks sees the
/// old folder or the new one, also after a crash or a power loss. Uncommitted, nothing of it stays. Not thread-safe.
class AtomicFolder {
 public:
  /// Throws IoError when the temporary folder cannot be made.
  explicit AtomicFolder(std::filesystem::path target);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Reserves the space of all files, then writes and syncs one after the other. Throws IoError.
  void write(const std::vector<FileToWrite>& files);
  /// Name, size and hash of everything that was written.
  const std::map<std::string, FileHash>& files() const { return files_; }
  /// Puts the folder in its place; an older one there is deleted with this object. Throws IoError.
  void commit();
  /// After commit(): the older folder comes back, or there is none again. Throws IoError.
  void take_back();

 private:
  std::filesystem::path target_, temporary_;
  bool has_replaced_ = false;
  std::map<std::string, FileHash> files_;
};

/// All of that at once.
void write_folder(const std::filesystem::path& target, const std::vector<FileToWrite>& files);

/// Deletes a folder so that what a crash leaves of it is under a temporary name. Throws IoError.
void delete_folder(const std::filesystem::path& folder);

/// Deletes what processes that died left of writing or deleting the entries of `folder` for which `is_ours(name)` is true.
/// Nobody else may write there meanwhile. Throws IoError.
void delete_temporaries(const std::filesystem::path& folder, const std::function<bool(const std::string&)>& is_ours);

}  // namespace lora_train::storage
