// The folder of one repository in the cache: models--org--name with blobs, snapshots and refs, as huggingface_hub writes it.
#pragma once

#include <filesystem>
#include <string>

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

}  // namespace lora_train::hub
