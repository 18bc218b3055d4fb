#include "lora_train/storage/private_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOnlyThisUser = 0700;
constexpr mode_t kWritableForOthers = S_IWGRP | S_IWOTH;

struct OpenFolder {
  int fd = -1;
  ~OpenFolder() {
    if (fd >= 0) ::close(fd);
  }
};

/// Without a trailing slash, behind which a link is followed.
fs::path bare(const fs::path& folder) {
  const fs::path path = folder.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void make_missing(const fs::path& folder) {
  if (folder.empty() || fs::exists(folder)) return;
  make_missing(folder.parent_path());
  if (::mkdir(folder.c_str(), kOnlyThisUser) != 0 && errno != EEXIST) fail_with(folder, "cannot create the folder");
}

std::string problem_of(const struct stat& info) {
  if (!S_ISDIR(info.st_mode)) return S_ISLNK(info.st_mode) ? "is a link" : "is not a folder";
  if (info.st_uid != ::geteuid()) {
    return "belongs to user " + std::to_string(info.st_uid) + ", not to you (" + std::to_string(::geteuid()) + ")";
  }
  if ((info.st_mode & kWritableForOthers) == 0) return {};
  return string_printf("can be written to by others (mode %04o; chmod 700 closes it)", info.st_mode & 07777);
}

}  // namespace

void make_private_folder(const fs::path& requested) {
  const fs::path folder = bare(requested);
  const auto fail = [&](const std::string& problem) {
    throw IoError(folder.string(), problem + "; a folder of your own was expected");
  };
  make_missing(folder.parent_path());
  if (::mkdir(folder.c_str(), kOnlyThisUser) != 0 && errno != EEXIST) fail_with(folder, "cannot create the folder");
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) fail_with(folder, "cannot inspect the folder");
  if (const std::string problem = problem_of(info); !problem.empty()) fail(problem);
  // The one that is open is looked at again: the name may belong to another by now.
  const OpenFolder open{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (open.fd < 0 || ::fstat(open.fd, &info) != 0) fail_with(folder, "cannot open the folder");
  if (const std::string problem = problem_of(info); !problem.empty()) fail(problem);
  if ((info.st_mode & 07777) != kOnlyThisUser && ::fchmod(open.fd, kOnlyThisUser) != 0) {
    fail_with(folder, "cannot close the folder to others");
  }
}

}  // namespace lora_train::storage
