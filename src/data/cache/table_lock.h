// The lock that marks cache files in use (token_cache_files.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "lora_train/base/file.h"

namespace lora_train::data {

/// Held until it is destroyed. Not thread-safe.
class TableLock {
 public:
  enum class Mode { kShared, kExclusive };

  /// kShared is for use, and waits. kExclusive is for deleting, and takes the lock only if it is free. Locks regular
  /// files only. Throws StopError on a stop request.
  TableLock(const std::filesystem::path& file, Mode mode);
  ~TableLock();
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;

  /// False if the file is gone, another process holds the lock, or the file system has no locks.
  bool is_held() const { return is_held_; }
  /// True if another process uses the file.
  bool is_busy() const { return is_busy_; }
  bool is_unsupported() const { return is_unsupported_; }

 private:
  int fd_ = -1;
  bool is_held_ = false, is_busy_ = false, is_unsupported_ = false;
};

/// Held by the one process that builds the table of a key. The lock is one byte of the file .lock in the folder, so
/// that nothing is left behind. Not thread-safe.
class BuildLock {
 public:
  /// Waits until no other process holds it; after a second, logs that `what` is waiting. Without locks (a read-only
  /// folder, a file system without them) it does not wait. Throws StopError on a stop request.
  BuildLock(const std::filesystem::path& folder, const std::string& key, const std::string& what);
  ~BuildLock();
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  void wait(const std::string& key, const std::string& what) const;
  void close();

  int fd_ = -1;
};

/// A writer of `file` and the shared lock on its temporary file, which then becomes the lock on `file`. Throws as
/// AtomicFileWriter does.
std::pair<std::unique_ptr<AtomicFileWriter>, std::shared_ptr<TableLock>> open_locked(const std::filesystem::path& file,
                                                                                     std::size_t expected_bytes);

}  // namespace lora_train::data
