#include "lora_train/base/file_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>

namespace lora_train {
namespace {

class SystemFileOps : public FileOps {
 public:
  int open(const std::string& path, int flags) override { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }
  std::ptrdiff_t read(int fd, void* buffer, std::size_t size) override { return ::read(fd, buffer, size); }
  std::ptrdiff_t write(int fd, const void* bytes, std::size_t size) override { return ::write(fd, bytes, size); }
  int allocate(int fd, std::size_t size) override { return ::fallocate(fd, 0, 0, static_cast<off_t>(size)); }
  int truncate(int fd, std::size_t size) override { return ::ftruncate(fd, static_cast<off_t>(size)); }
  int sync(int fd) override { return ::fsync(fd); }
  int close(int fd) override { return ::close(fd); }
  int rename(const std::string& from, const std::string& to) override { return ::rename(from.c_str(), to.c_str()); }
  int exchange(const std::string& one, const std::string& other) override {
    return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
  }
  int unlink(const std::string& path) override { return ::unlink(path.c_str()); }
  int make_folder(const std::string& path) override { return ::mkdir(path.c_str(), 0777); }
  int remove_folder(const std::string& path) override { return ::rmdir(path.c_str()); }

  int list(const std::string& path, std::vector<std::string>& names) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
    if (!folder) return -1;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(folder.get());
      if (entry == nullptr) return errno == 0 ? 0 : -1;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
  }

  int kind(const std::string& path, PathKind& kind) override {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) {
      kind = PathKind::kNone;
      return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
    }
    kind = S_ISREG(info.st_mode) ? PathKind::kFile : S_ISDIR(info.st_mode) ? PathKind::kFolder : PathKind::kOther;
    return 0;
  }

  int free_bytes(const std::string& folder, std::uint64_t& bytes) override {
    struct statvfs info {};
    if (::statvfs(folder.c_str(), &info) != 0) return -1;
    bytes = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
    return 0;
  }
};

SystemFileOps system_ops;
std::atomic<FileOps*> current{&system_ops};

}  // namespace

FileOps& file_ops() { return *current.load(std::memory_order_acquire); }

void set_file_ops(FileOps* ops) { current.store(ops != nullptr ? ops : &system_ops, std::memory_order_release); }

}  // namespace lora_train
