// How fast the disk of a folder writes and reads.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lora_train::cli {

struct DiskSpeed {
  std::filesystem::path folder;
  std::uint64_t free_bytes = 0;  ///< for this user
  std::uint64_t num_bytes = 0;   ///< written and read to measure; 0 = not measured
  double write_bytes_per_s = 0;  ///< sequential, with the fsync at the end
  double read_bytes_per_s =
      0;  ///< sequential, after the kernel was asked to forget the file; memory speed where it did not
};

/// The folder, or the nearest one above it that exists.
std::filesystem::path existing_folder(std::filesystem::path folder);

/// Free space alone. Throws IoError.
DiskSpeed look_at_disk(const std::filesystem::path& folder);

/// Writes at most `most_bytes`, a quarter of what is free, or what goes in 5 s into a file without a name, syncs, and
/// reads it back. The file is gone when the process is, whatever ends it. Throws IoError.
DiskSpeed measure_disk(const std::filesystem::path& folder, std::uint64_t most_bytes = std::uint64_t{256} << 20);

}  // namespace lora_train::cli
