// A file that is being downloaded in segments, at several places at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace lora_train::hub {

constexpr std::uint64_t kSegmentBytes = 64u << 20;

/// Holds the bytes at their places, and behind them 8 bytes a segment: how many of its bytes are there (little endian, counted from
/// its begin). So a download that was interrupted in any way goes on from there; what a power loss may have cost the check of the
/// hash finds. Space for everything is reserved first. Segments may be written from several threads, each by one.
class PartialFile {
 public:
  /// Opens or creates it. A file of another layout is begun anew. Throws IoError (no space: before the first byte).
  PartialFile(std::filesystem::path path, std::uint64_t num_bytes);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  std::size_t num_segments() const { return done_.size(); }
  std::uint64_t begin(std::size_t segment) const { return segment * kSegmentBytes; }
  std::uint64_t end(std::size_t segment) const;
  /// Bytes of the segment that are there.
  std::uint64_t num_done(std::size_t segment) const { return done_[segment]; }
  std::uint64_t num_done() const;

  /// The next bytes of a segment. Throws IoError if they are more than it lacks, or the disk refuses them.
  void append(std::size_t segment, std::string_view bytes);
  /// Forgets what is there.
  void restart();
  /// The complete file, without what stands behind it, synced and closed, as `target`.
  void publish(const std::filesystem::path& target);
  const std::filesystem::path& path() const { return path_; }

 private:
  void read_counts();
  void write_count(std::size_t segment);

  std::filesystem::path path_;
  std::uint64_t num_bytes_ = 0;
  std::vector<std::uint64_t> done_;
  int fd_ = -1;
};

}  // namespace lora_train::hub
