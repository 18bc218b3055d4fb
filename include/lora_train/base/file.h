// Files: whole reads, memory maps, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace lora_train {

/// The whole file. Throws IoError (path, strerror) when it cannot be opened or read.
std::string read_file(const std::filesystem::path& path);

/// Reads a file from its start to its end, piece by piece. Not thread-safe.
class FileReader {
 public:
  /// Throws IoError when the file cannot be opened.
  explicit FileReader(std::filesystem::path path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// Fills `buffer` and returns how many bytes came: fewer than `size` only at the end of the file. Throws IoError.
  std::size_t read(char* buffer, std::size_t size);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Size and hash (hash128_hex) of a file's bytes, by read(): a disk that fails is an IoError and not, as in a map, a
/// SIGBUS. Throws IoError.
struct FileHash {
  std::size_t num_bytes = 0;
  std::string hash;
};
FileHash hash_file(const std::filesystem::path& path);

/// Writes `bytes` to a temporary sibling, syncs it, renames it over `path` and syncs the folder: a reader sees the old
/// file or the new one, never a part. Throws IoError; the temporary file is removed then.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// Writes a file of known size piece by piece, then makes it appear under its name as write_file_atomic does.
/// Space is reserved first (posix_fallocate), so that a full disk is an IoError (ENOSPC) and never a SIGBUS.
/// A writer destroyed before commit() leaves nothing behind. Not thread-safe.
class AtomicFileWriter {
 public:
  AtomicFileWriter(std::filesystem::path path, std::size_t expected_bytes);
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  void write(std::string_view bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

/// Writes to a descriptor until all is written or the system refuses, interruptions aside. Returns how many bytes were
/// written; when that is fewer than there are, errno says why.
std::size_t write_all(int fd, std::string_view bytes);

/// fsync of a folder, so that names created in it survive a power loss.
void sync_folder(const std::filesystem::path& folder);

/// A read-only memory map of a whole file. Copies share the map; it is unmapped with the last one.
class MappedFile {
 public:
  /// Throws IoError when the file cannot be opened or mapped. An empty file maps to size 0.
  explicit MappedFile(const std::filesystem::path& path);
  const char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::string_view bytes() const { return {data(), size_}; }
  const std::filesystem::path& path() const { return path_; }
  /// Tells the kernel that the pages of [offset, offset + bytes) are not needed any more, so that they leave the
  /// resident set of the process. Reading them again is allowed and reads the file.
  void release(std::size_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const char> data_;
  std::size_t size_ = 0;
};

}  // namespace lora_train
