// The folder of one repository in the cache: models--org--name with blobs, snapshots and refs, as huggingface_hub
// writes it, and its partial files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hub_api.h"
#include "lora_train/base/file.h"

namespace lora_train::hub {

class CacheFolder {
 public:
  explicit CacheFolder(const storage::HubId& repository);

  std::filesystem::path blob(const RepositoryFile& file) const { return folder_ / "blobs" / file.etag; }
  /// The file that keeps what has arrived of the blob.
  std::filesystem::path partial(const RepositoryFile& file) const;
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }

  /// True if the contents are there, with the right size.
  bool has_blob(const RepositoryFile& file) const;
  /// True if the snapshot has the file, as a link or a copy, with the right size.
  bool has_file(const RepositoryFile& file, const std::string& commit) const;

  /// Creates the folders.
  void create() const;
  /// Gives the blob its name in the snapshot: a relative link, or the blob itself if the file system has no links.
  void link(const RepositoryFile& file, const std::string& commit) const;
  /// refs/REVISION = commit, unless the revision is the commit.
  void write_reference(const std::string& revision, const std::string& commit) const;

  /// Free bytes for this user.
  std::uint64_t free_bytes() const;
  const std::filesystem::path& path() const { return folder_; }

 private:
  friend class BlobLock;
  std::filesystem::path folder_, locks_;
};

/// While it lives, no other process downloads this blob: flock on .locks/models--org--name/ETAG.lock, as filelock does.
/// Logs while it waits for the lock; a stop request ends the wait. A file system without locks counts as locked: blobs
/// get their names whole anyway.
class BlobLock {
 public:
  BlobLock(const CacheFolder& cache, const RepositoryFile& file);

 private:
  Descriptor file_;
};

constexpr std::uint64_t kSegmentBytes = 64u << 20;

/// Holds the bytes at their places, followed by 8 bytes per segment: how many of its bytes are there (little endian,
/// counted from its begin). So a download resumes from there after any interruption; the hash check finds what a power
/// loss has damaged. Space for everything is reserved first. Several threads may write, one per segment.
class PartialFile {
 public:
  /// Opens or creates it. Restarts a file with another layout. Throws IoError (no space: before the first byte).
  PartialFile(std::filesystem::path path, std::uint64_t num_bytes);

  std::size_t num_segments() const { return done_.size(); }
  std::uint64_t begin(std::size_t segment) const { return segment * kSegmentBytes; }
  std::uint64_t end(std::size_t segment) const;
  /// Bytes that the segment lacks.
  std::uint64_t num_missing(std::size_t segment) const { return end(segment) - begin(segment) - done_[segment]; }
  std::uint64_t num_done() const;

  /// Appends the next bytes of a segment. Throws IoError if they are more than it lacks, or the disk refuses them.
  void append(std::size_t segment, std::string_view bytes);
  /// Forgets what is there.
  void restart();
  /// Cuts off the counts, then syncs, closes and renames the complete file to `target`.
  void publish(const std::filesystem::path& target);
  const std::filesystem::path& path() const { return path_; }

 private:
  void read_counts();
  void write_count(std::size_t segment);

  std::filesystem::path path_;
  std::uint64_t num_bytes_ = 0;
  std::vector<std::uint64_t> done_;
  Descriptor file_;
};

}  // namespace lora_train::hub
