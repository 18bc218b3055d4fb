#include "cache_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"

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

constexpr std::uint64_t kCountBytes = sizeof(std::uint64_t);

bool is_full(int code) { return code == ENOSPC || code == EDQUOT; }

[[noreturn]] void fail_to_write(const std::filesystem::path& path, int code) {
  throw IoError(path.string(), "cannot write: {}. What has arrived is kept; {}run the command again, and it resumes.",
                std::strerror(code), is_full(code) ? "free some space and " : "");
}

void write_at(int fd, const std::filesystem::path& path, std::string_view bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const auto written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_to_write(path, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

}  // namespace

CacheFolder::CacheFolder(const storage::HubId& repository) {
  const std::string name = storage::hub_folder_name(repository);
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
  if (file_ops().free_bytes(folder_.string(), bytes) != 0) fail_with(folder_, "cannot determine the free space");
  return bytes;
}

BlobLock::BlobLock(const CacheFolder& cache, const RepositoryFile& file) {
  const fs::path path = cache.locks_ / (file.etag + ".lock");
  auto next_line = std::chrono::steady_clock::now();
  for (;;) {
    file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0664));
    if (!file_.is_open()) fail_with(path, "cannot create");
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return;
    } else if (struct stat status{}; ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0) {
      return;
    }
    file_ = Descriptor();
    if (const auto now = std::chrono::steady_clock::now(); now >= next_line) {
      log_info(file.path + ": waiting for another process to download it");
      next_line = now + std::chrono::seconds(10);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    throw_if_stop_requested();
  }
}

PartialFile::PartialFile(std::filesystem::path path, std::uint64_t num_bytes)
    : path_(std::move(path)), num_bytes_(num_bytes), done_((num_bytes + kSegmentBytes - 1) / kSegmentBytes) {
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file_.is_open()) fail_with(path_, "cannot create");
  read_counts();
}

std::uint64_t PartialFile::end(std::size_t segment) const {
  return std::min(begin(segment) + kSegmentBytes, num_bytes_);
}

std::uint64_t PartialFile::num_done() const { return std::accumulate(done_.begin(), done_.end(), std::uint64_t{0}); }

void PartialFile::read_counts() {
  const std::uint64_t whole = num_bytes_ + kCountBytes * done_.size();
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_with(path_, "cannot read");
  bool is_ours = static_cast<std::uint64_t>(status.st_size) == whole;
  for (std::size_t i = 0; is_ours && i < done_.size(); ++i) {
    const auto offset = static_cast<off_t>(num_bytes_ + kCountBytes * i);
    is_ours = ::pread(file_.get(), &done_[i], kCountBytes, offset) == static_cast<ssize_t>(kCountBytes) &&
              done_[i] <= end(i) - begin(i);
  }
  if (is_ours) return;
  if (::ftruncate(file_.get(), 0) != 0) fail_with(path_, "cannot write");
  if (whole == 0) return;
  const bool is_reserved = ::fallocate(file_.get(), 0, 0, static_cast<off_t>(whole)) == 0;
  const bool is_unknown = errno == EOPNOTSUPP || errno == ENOSYS;  // NFS and others
  if (!is_reserved && (!is_unknown || ::ftruncate(file_.get(), static_cast<off_t>(whole)) != 0)) {
    const int refused = errno;
    ::unlink(path_.c_str());
    throw IoError(path_.string(), "cannot reserve {}: {}{}", format_bytes(whole), std::strerror(refused),
                  is_full(refused) ? ". Free some space, or set HF_HOME to a folder on a larger disk." : ".");
  }
  std::ranges::fill(done_, 0);
}

void PartialFile::write_count(std::size_t segment) {
  const std::string_view bytes(reinterpret_cast<const char*>(&done_[segment]), kCountBytes);
  write_at(file_.get(), path_, bytes, num_bytes_ + kCountBytes * segment);
}

void PartialFile::append(std::size_t segment, std::string_view bytes) {
  if (bytes.size() > num_missing(segment))
    throw IoError(path_.string(), "the server sent more bytes than the file has. Run the command again.");
  write_at(file_.get(), path_, bytes, begin(segment) + done_[segment]);
  done_[segment] += bytes.size();
  write_count(segment);
}

void PartialFile::restart() {
  for (std::size_t i = 0; i < done_.size(); ++i) {
    done_[i] = 0;
    write_count(i);
  }
}

void PartialFile::publish(const std::filesystem::path& target) {
  if (::ftruncate(file_.get(), static_cast<off_t>(num_bytes_)) != 0 || ::fsync(file_.get()) != 0)
    fail_to_write(path_, errno);
  file_ = Descriptor();
  rename_path(path_, target);
}

}  // namespace lora_train::hub
