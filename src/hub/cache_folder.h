// The folder of one repository in the cache: models--org--name with blobs, snapshots and refs, as huggingface_hub writes it, and
// the files in it that are still coming.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hub_api.h"

namespace lora_train::hub {

class CacheFolder {
 public:
  explicit CacheFolder(const Repository& repository);

  std::filesystem::path blob(const RepositoryFile& file) const { return folder_ / "blobs" / file.etag; }
  /// Where a download keeps what has arrived of the blob.
  std::filesystem::path partial(const RepositoryFile& file) const;
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }

  /// Whether the contents are there, with the right size.
  bool has_blob(const RepositoryFile& file) const;
  /// Whether the snapshot has the file, as a link or a copy, with the right size.
  bool has_file(const RepositoryFile& file, const std::string& commit) const;

  /// Creates the folders.
  void create() const;
  /// Gives the blob its name in the snapshot: a relative link; where the file system has no links, the blob moves there.
  void link(const RepositoryFile& file, const std::string& commit) const;
  /// refs/REVISION = commit, unless the revision is the commit.
  void write_reference(const std::string& revision, const std::string& commit) const;

  /// Bytes that are free for this user.
  std::uint64_t free_bytes() const;
  const std::filesystem::path& path() const { return folder_; }

 private:
  friend class BlobLock;
  std::filesystem::path folder_, locks_;
};

/// While it lives, no other process downloads this blob: flock on .locks/models--org--name/ETAG.lock, as filelock does. Waiting for it
/// is logged, and ends with a stop request. A file system without locks is taken as locked: blobs get their names whole anyway.
class BlobLock {
 public:
  BlobLock(const CacheFolder& cache, const RepositoryFile& file);
  ~BlobLock();
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;

 private:
  int fd_ = -1;
};

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
