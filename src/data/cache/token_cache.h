// Stores the token tables of datasets between runs, and copies them to a local disk (stage_dir).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "lora_train/base/file.h"
#include "lora_train/data/cache/document_store.h"

namespace lora_train::data {

/// Marks a cache file as in use (token_cache_files.h). Held until it is destroyed. Not thread-safe.
class TableLock {
 public:
  enum class Mode { kShared, kExclusive };

  /// kShared is for use, and waits. kExclusive is for deleting, and takes the lock only if it is free. Locks regular
  /// files only. Throws StopError on a stop request.
  TableLock(const std::filesystem::path& file, Mode mode);

  /// False if the file is gone, another process holds the lock, or the file system has no locks.
  bool is_held() const { return is_held_; }
  /// True if another process uses the file.
  bool is_busy() const { return is_busy_; }
  bool is_unsupported() const { return is_unsupported_; }

 private:
  Descriptor file_;
  bool is_held_ = false, is_busy_ = false, is_unsupported_ = false;
};

/// A writer of `file` and the shared lock on its temporary file, which then becomes the lock on `file`. Throws as
/// AtomicFileWriter does.
std::pair<std::unique_ptr<AtomicFileWriter>, std::shared_ptr<TableLock>> open_locked(const std::filesystem::path& file,
                                                                                     std::size_t expected_bytes);

/// A folder of files <key>.tokens. The key covers everything that determines a table's content, so a file is never
/// stale; files appear complete, so two processes may build the same one at once. Deletes damaged files, unfinished
/// files of ended processes, and, beyond token_cache_limit(), the least recently used files (token_cache_files.h).
class TokenCache {
 public:
  /// `folder` empty: stores nothing, tables stay in memory. `stage_dir` (from the profile) empty: tables are read in
  /// place. Makes the user's own folder (user_token_cache()) private; if that is impossible, warns and does not use it.
  /// Throws what find_stage_folder throws.
  TokenCache(std::filesystem::path folder, std::string stage_dir);

  /// The table for `key`, or null. A damaged file counts as missing, with a warning.
  std::shared_ptr<const TokenTable> find(const std::string& key) const;
  /// While the result lives, other processes wait here for the same key: one process builds the table for all ranks of
  /// a host. After a second, logs that `what` is waiting. The lock is one byte of the file .lock in the folder, so that
  /// nothing is left behind. Without locks (a read-only folder, a file system without them) it does not wait. Throws
  /// StopError on a stop request.
  Descriptor wait_to_build(const std::string& key, const std::string& what) const;
  /// Writes a table for `key`; if the folder is not writable, warns and writes to memory.
  TokenTableWriter writer(const std::string& key) const;
  /// The table from the stage folder, after copying it there if needed. If that fails (no room), warns and returns
  /// `table`. Does not read a file that another user put there.
  std::shared_ptr<const TokenTable> staged(std::shared_ptr<const TokenTable> table, const std::string& key) const;

  /// Deletes tables beyond the limit, in both folders. Tables in use stay.
  void shrink() const;

 private:
  std::filesystem::path file_of(const std::filesystem::path& folder, const std::string& key) const;

  std::filesystem::path folder_;
  std::string stage_dir_;
  std::filesystem::path stage_folder_;
  std::uint64_t limit_;
};

/// The folder that stage_dir names; `auto` means lora-train-stage-<user id> in the temporary folder. Throws ConfigError
/// if it exists and is not a folder, belongs to another user (except root) or is that user's link, or if others may
/// replace its files.
std::filesystem::path find_stage_folder(const std::string& stage_dir);

}  // namespace lora_train::data
