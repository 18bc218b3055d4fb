// Files: whole reads, memory maps, and writes that appear whole or not at all. Also folders and the names in them,
// through FileOps. All functions throw IoError if the system refuses.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lora_train/base/file_ops.h"
#include "lora_train/base/hash.h"

namespace lora_train {

/// Owns a descriptor and closes it.
template <int (*close_descriptor)(int)>
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int fd = -1) : fd_(fd) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedDescriptor() {
    if (fd_ >= 0) close_descriptor(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};
using Descriptor = OwnedDescriptor<::close>;  ///< of the system
int close_file(int fd);
using FileDescriptor = OwnedDescriptor<close_file>;  ///< of file_ops()

/// Throws IoError (path) with `what` ("cannot read") and strerror(code).
[[noreturn]] void fail_with(const std::filesystem::path& path, const std::string& what, int code = errno);

/// The whole file. Throws IoError (path, strerror) if it cannot be opened or read.
std::string read_file(const std::filesystem::path& path);

/// The first max_bytes of a file; all of it if it is shorter. Throws as read_file.
std::string read_start(const std::filesystem::path& path, std::size_t max_bytes);

/// Reads a file from its start to its end, piece by piece. Not thread-safe.
class FileReader {
 public:
  /// Throws IoError if the file cannot be opened.
  explicit FileReader(std::filesystem::path path);

  /// Fills `buffer` and returns the number of bytes read: fewer than `size` only at the end of the file. Throws
  /// IoError.
  std::size_t read(char* buffer, std::size_t size);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

/// Size and hash (hash128_hex) of a file's bytes, through read(): a failing disk is an IoError, not a SIGBUS as in a
/// map. Throws IoError.
struct FileHash {
  std::size_t num_bytes = 0;
  std::string hash;
};
FileHash hash_file(const std::filesystem::path& path, const std::function<void()>& after_each_mib = nullptr);

/// Writes `bytes` to a temporary sibling, syncs it, renames it over `path` and syncs the folder: a reader sees the old
/// file or the new one, never a part. Throws IoError; the temporary file is removed then.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// A new file, written from its start to its end. Space is reserved first (fallocate), so that a full disk is an
/// IoError (ENOSPC) before the first byte and never a SIGBUS. A writer destroyed before finish() deletes the file. Not
/// thread-safe.
class FileWriter {
 public:
  /// expected_bytes 0: unknown. Throws IoError if the file exists already or there is no room for it; errors name
  /// `shown`, by default the path.
  FileWriter(std::filesystem::path path, std::size_t expected_bytes, std::filesystem::path shown = {});
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::string_view bytes);
  /// Syncs and closes. Returns size and hash of what was written.
  FileHash finish();
  const std::filesystem::path& path() const { return path_; }

 private:
  void reserve();

  std::filesystem::path path_, shown_;
  std::size_t expected_bytes_ = 0, num_written_ = 0;
  Hasher hasher_;
  int fd_ = -1;
};

/// A FileWriter whose file appears under its name complete or not at all, as with write_file_atomic. Errors name the
/// file, not its temporary sibling.
class AtomicFileWriter {
 public:
  AtomicFileWriter(std::filesystem::path path, std::size_t expected_bytes);
  ~AtomicFileWriter();

  void write(std::string_view bytes) { writer_.write(bytes); }
  void commit();
  /// The file that has the bytes until commit().
  const std::filesystem::path& temporary() const { return writer_.path(); }

 private:
  std::filesystem::path path_;
  FileWriter writer_;
  bool is_finished_ = false, is_committed_ = false;
};

/// Syncs (fsync) a file that other code writes.
void sync_file(const std::filesystem::path& path);

/// Writes to a descriptor until all is written or the system refuses; retries when interrupted. Returns how many bytes
/// were written; if that is fewer than given, errno says why.
std::size_t write_all(int fd, std::string_view bytes);

/// A whole file as bytes in memory: mapped, or read into a buffer. Copies share the bytes; the last copy frees them.
class MappedFile {
 public:
  /// Maps. Throws IoError if the file cannot be opened or mapped. An empty file maps to size 0.
  explicit MappedFile(const std::filesystem::path& path);
  /// Reads: costs memory, but a failing disk is an IoError here, not a SIGBUS later.
  static MappedFile read(const std::filesystem::path& path);
  /// Bytes that are in memory already.
  MappedFile(std::filesystem::path path, std::string bytes);
  const char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::string_view bytes() const { return {data(), size_}; }
  const std::filesystem::path& path() const { return path_; }
  /// Tells the kernel that the pages of [offset, offset + bytes) are no longer needed, so that they leave the resident
  /// set of the process. They can be read again from the file. No effect on bytes that were read into a buffer.
  void release(std::size_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const char> data_;
  std::size_t size_ = 0;
  bool is_mapped_ = false;
};

/// Kind of the path itself; a link is kOther.
PathKind path_kind(const std::filesystem::path& path);

/// Names in a folder, sorted.
std::vector<std::string> list_folder(const std::filesystem::path& folder);

/// lora-train's own folder, in $<variable> if that is an absolute path, else in <folder> of the home folder; empty
/// without a home: user_folder("XDG_CACHE_HOME", ".cache").
std::filesystem::path user_folder(const char* variable, const std::filesystem::path& folder);

void make_folder(const std::filesystem::path& folder);

/// Creates the folder and its parents, and syncs its name, so that a power loss cannot lose what is saved in it. Leaves
/// an existing folder, or a link to one, as it is. Warns about a parent that may not be synced.
void make_folders(const std::filesystem::path& folder);

/// Replaces a file at `to` atomically.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two paths of one file system atomically. False if the file system cannot.
bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other);

/// Deletes a file, a link or a folder with everything in it; no effect if it does not exist.
void remove_tree(const std::filesystem::path& path);

/// Deletes an empty folder.
void remove_folder(const std::filesystem::path& folder);

/// fsync of a folder, so that names created in it survive a power loss.
void sync_folder(const std::filesystem::path& folder);

/// Says why a name from a file or a user must not be joined to a folder ("holds a path separator", ...), or null if it
/// may.
const char* why_not_file_name(std::string_view name);

}  // namespace lora_train
