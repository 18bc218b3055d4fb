#include "lora_train/run_folder/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/log.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;

constexpr char kProcess[] = "process ";

/// Another process may have deleted the file between our open() and flock().
bool has_the_name(int fd, const fs::path& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

/// A lock file is empty or names its process.
bool is_lock(int fd) {
  struct stat held {};
  char start[sizeof kProcess] = {};
  if (::fstat(fd, &held) != 0 || !S_ISREG(held.st_mode)) return false;
  const ssize_t size = ::pread(fd, start, sizeof kProcess - 1, 0);
  return size == 0 || std::string_view(start) == kProcess;
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : path_(folder / storage::kLockFile) {
  make_folders(folder);
  do {
    file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
    if (!file_.is_open() && errno != ELOOP) fail_with(path_, "cannot open the lock of the output folder");
    if (!file_.is_open() || !is_lock(file_.get())) {
      throw ConfigError(path_.string(),
                        "is a link, or was not written by lora-train, which locks the folder with a file of this name. "
                        "Move it, or choose another output_dir");
    }
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) continue;
    const int code = errno;
    if (code == EWOULDBLOCK) {
      const std::string holder = read_file(path_);
      throw ConfigError(folder.string(), "another run is writing here (" + (holder.empty() ? "a process" : holder) +
                                             "). Wait for it, stop it, or choose another --output-dir");
    }
    file_ = Descriptor();
    log_warning(path_.string() + ": this file system does not support locks (" + std::strerror(code) +
                "); nothing stops a second run from writing to the folder");
    return;
  } while (!has_the_name(file_.get(), path_));
  const std::string holder = fmt::format("{}{} on {}", kProcess, ::getpid(), host_name());
  if (::ftruncate(file_.get(), 0) != 0 || write_all(file_.get(), holder) != holder.size()) {
    log_warning("{}: cannot write this process's name: {}", path_.string(), std::strerror(errno));
  }
}

FolderLock::~FolderLock() {
  if (file_.is_open()) ::unlink(path_.c_str());  // before the lock ends
}

}  // namespace lora_train::run_folder
