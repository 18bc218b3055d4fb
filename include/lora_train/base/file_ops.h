// The file system operations that write, read back and delete files, in one layer, so that a test can number them, fail
// them or hold the files in memory. The program has one implementation, the system's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lora_train {

enum class PathKind { kNone, kFile, kFolder, kOther };

/// Each operation is the system call of its name: -1 and errno on failure. May be called from several threads.
class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int open(const std::string& path,
                   int flags) = 0;  ///< new files have the mode that umask leaves; O_CLOEXEC is added
  virtual std::ptrdiff_t read(int fd, void* buffer, std::size_t size) = 0;
  virtual std::ptrdiff_t write(int fd, const void* bytes, std::size_t size) = 0;
  virtual int allocate(int fd, std::size_t size) = 0;  ///< fallocate(2) from 0
  virtual int truncate(int fd, std::size_t size) = 0;  ///< ftruncate
  virtual int sync(int fd) = 0;                        ///< fsync
  virtual int close(int fd) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int exchange(const std::string& one, const std::string& other) = 0;  ///< renameat2(RENAME_EXCHANGE)
  virtual int unlink(const std::string& path) = 0;
  virtual int make_folder(const std::string& path) = 0;
  virtual int remove_folder(const std::string& path) = 0;
  virtual int list(const std::string& path, std::vector<std::string>& names) = 0;  ///< without . and ..; any order
  virtual int kind(const std::string& path, PathKind& kind) = 0;  ///< of the path itself, links not followed
  virtual int free_bytes(const std::string& folder, std::uint64_t& bytes) = 0;  ///< statvfs: for this user
};

/// The operations that all file functions of base use.
FileOps& file_ops();

/// For tests: uses `ops` (which must stay alive) instead; null restores the system's. Not while another thread has
/// files open.
void set_file_ops(FileOps* ops);

}  // namespace lora_train
