#include "lora_train/storage/atomic_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& what, int code) {
  throw IoError(path.string(), what + ": " + std::strerror(code));
}

void sync_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot open to sync", errno);
  const int code = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (code != 0) fail(path, "cannot sync", code);
}

void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) {
      sync_tree(entry.path());
    } else {
      sync_file(entry.path());
    }
  }
  sync_folder(folder);
}

/// `temporary` takes the name of `target`; what had it before ends under the temporary name.
void exchange(const fs::path& temporary, const fs::path& target) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != ENOENT && errno != EINVAL && errno != ENOSYS) fail(target, "cannot rename into place", errno);
  // No older folder, or a file system that cannot exchange.
  fs::remove_all(target);
  fs::rename(temporary, target);
}

}  // namespace

AtomicFolder::AtomicFolder(fs::path target) : target_(std::move(target)) {
  temporary_ = target_.parent_path() / (".tmp-" + target_.filename().string() + "-" + std::to_string(::getpid()));
  try {
    fs::remove_all(temporary_);
    fs::create_directory(temporary_);
  } catch (const fs::filesystem_error& error) {
    throw IoError(target_.string(), "cannot create the folder: " + error.code().message());
  }
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  try {
    sync_tree(temporary_);
    exchange(temporary_, target_);
    sync_folder(target_.parent_path());
    fs::remove_all(temporary_);
  } catch (const fs::filesystem_error& error) {
    throw IoError(target_.string(), "cannot put the folder in its place: " + error.code().message());
  }
}

}  // namespace lora_train::storage
