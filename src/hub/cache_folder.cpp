#include "cache_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::hub {
namespace {

namespace fs = std::filesystem;

bool has_size(const fs::path& file, std::uint64_t num_bytes) {
  std::error_code code;
  return fs::is_regular_file(file, code) && fs::file_size(file, code) == num_bytes && !code;
}

/// From the folder of `file` in a snapshot up to the folder of the repository.
fs::path way_to_blobs(const std::string& file) {
  fs::path way = fs::path("..") / "..";
  for (const char c : file) {
    if (c == '/') way /= "..";
  }
  return way / "blobs";
}

}  // namespace

CacheFolder::CacheFolder(const Repository& repository) {
  const std::string name = storage::hub_folder_name(repository.id, repository.kind);
  folder_ = storage::hub_cache_folder() / name;
  locks_ = storage::hub_cache_folder() / ".locks" / name;
}

fs::path CacheFolder::partial(const RepositoryFile& file) const {
  return folder_ / "blobs" / (file.etag + ".lora-train.incomplete");
}

bool CacheFolder::has_blob(const RepositoryFile& file) const { return has_size(blob(file), file.num_bytes); }

bool CacheFolder::has_file(const RepositoryFile& file, const std::string& commit) const {
  return has_size(snapshot(commit) / file.path, file.num_bytes);
}

void CacheFolder::create() const {
  make_folders(locks_);
  make_folders(folder_ / "blobs");
}

void CacheFolder::link(const RepositoryFile& file, const std::string& commit) const {
  const fs::path name = snapshot(commit) / file.path;
  make_folders(name.parent_path());
  const fs::path temporary = name.string() + ".lora-train.link";
  remove_tree(temporary);
  if (::symlink((way_to_blobs(file.path) / file.etag).c_str(), temporary.c_str()) == 0) {
    rename_path(temporary, name);
  } else if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS) {
    rename_path(blob(file), name);
  } else {
    fail_with(name, "cannot create a link");
  }
}

void CacheFolder::write_reference(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path reference = folder_ / "refs" / revision;
  if (fs::is_regular_file(reference) && read_file(reference) == commit) return;
  make_folders(reference.parent_path());
  write_file_atomic(reference, commit);
}

std::uint64_t CacheFolder::free_bytes() const {
  std::uint64_t bytes = 0;
  if (file_ops().free_bytes(folder_.string(), bytes) != 0) fail_with(folder_, "cannot ask for the free space");
  return bytes;
}

BlobLock::BlobLock(const CacheFolder& cache, const RepositoryFile& file) {
  const fs::path path = cache.locks_ / (file.etag + ".lock");
  auto next_line = std::chrono::steady_clock::now();
  for (;;) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0664);
    if (fd_ < 0) fail_with(path, "cannot create");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return;
    } else if (struct stat status{}; ::fstat(fd_, &status) == 0 && status.st_nlink > 0) {
      return;
    }
    ::close(fd_);
    fd_ = -1;
    if (const auto now = std::chrono::steady_clock::now(); now >= next_line) {
      log_info(file.path + ": waiting for another process that downloads it");
      next_line = now + std::chrono::seconds(10);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    throw_if_stop_requested();
  }
}

BlobLock::~BlobLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lora_train::hub
