// The bytes of a dataset file, unpacked while they are being read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

namespace lora_train::data {

/// A stream of bytes. Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `buffer` and returns how many bytes came: fewer than `size` only at the end.
  /// Throws IoError, and DataError (where = file) for packed data that is damaged or ends early.
  virtual std::size_t read(char* buffer, std::size_t size) = 0;
};

/// Opens `file`; gzip and zstd are known by their first bytes, whatever the file's name is.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& file);

}  // namespace lora_train::data
