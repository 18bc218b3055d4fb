// Writes a folder atomically: it appears with all its files or not at all. Also folders that only their user can read.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

/// A file to write: text, or tensors (a safetensors file). The memory of the tensors must live until the file is
/// written.
struct FileToWrite {
  std::string name;
  std::string text;
  std::vector<TensorToWrite> tensors = {};
};

/// The names of the entries of a folder that this program wrote; all others belong to somebody and are never deleted.
/// Empty: all.
using OwnEntries = std::function<std::vector<std::string>(const std::filesystem::path& folder)>;

/// The regular files of `folder` whose names satisfy is_ours(name), for OwnEntries. Throws IoError.
std::vector<std::string> own_files(const std::filesystem::path& folder,
                                   const std::function<bool(const std::string&)>& is_ours);

/// Writes files to a temporary folder next to `target` (.tmp-<name>-<number>) and renames it, so that readers see
/// either the old folder or the new one, even after a crash or a power loss. Without commit(), the destructor deletes
/// everything. Not thread-safe.
class AtomicFolder {
 public:
  /// `own`: of the folder that is replaced. Throws IoError if the temporary folder cannot be created.
  explicit AtomicFolder(std::filesystem::path target, OwnEntries own = {});
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Reserves disk space for all files, then writes and syncs them one by one. Throws IoError.
  void write(const std::vector<FileToWrite>& files);
  /// Name, size and hash of every file written.
  const std::map<std::string, FileHash>& files() const { return files_; }
  /// The folder that has the files until commit(). Anything else put there becomes part of the folder.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Renames the folder to `target`. The destructor discards an older folder of that name (discard_folder). Throws
  /// IoError.
  void commit();
  /// Undoes commit(): restores the older folder, if there was one. Throws IoError.
  void take_back();

 private:
  std::filesystem::path target_, temporary_;
  OwnEntries own_;
  bool has_replaced_ = false, holds_replaced_ = false;
  std::map<std::string, FileHash> files_;
};

/// Deletes what this program wrote in `folder`, and `folder` itself once it is empty. Everything else moves to the
/// folder `home` under its name; if that is taken, or there is no such folder, it stays, and a log line names it. A
/// call that was interrupted is completed by the next one. Throws IoError.
void discard_folder(const std::filesystem::path& folder, const std::filesystem::path& home, const OwnEntries& own);

/// Renames a folder to a temporary name, then deletes it, so that a crash leaves no partial folder under its name. One
/// that holds anything else is discarded in place. Throws IoError.
void delete_folder(const std::filesystem::path& folder, const OwnEntries& own = {});

/// <name> of .tmp-<name>-<number>, as AtomicFolder names it; nothing for other names.
std::optional<std::string> name_of_temporary_folder(std::string_view temporary);
/// <name> of .tmp-<name>-<process>-<number>, as AtomicFileWriter names it; nothing for other names.
std::optional<std::string> name_of_temporary_file(std::string_view temporary);

/// Deletes the temporary files of `folder` that dead processes left behind and discards the temporary folders, for
/// entries whose name satisfies is_ours(name); a folder in which nothing is ours stays. No other process may write to
/// `folder` at the same time. Throws IoError.
void delete_temporaries(const std::filesystem::path& folder, const std::function<bool(const std::string&)>& is_ours,
                        const OwnEntries& own = {});

/// Creates `folder`, and those missing above it, for this user only (mode 0700). An existing one must be a folder, not
/// a link, belong to this user, and not be writable by anybody else; it is closed to readers. Existing parents are left
/// as they are, and may be links. Throws IoError (the folder, and what is wrong with it).
void make_private_folder(const std::filesystem::path& folder);

}  // namespace lora_train::storage
