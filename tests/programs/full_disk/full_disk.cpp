// A disk that fills up, for tests (LD_PRELOAD). FULL_DISK_BYTES: it reserves no space (as NFS), and so many bytes can be written at an
// offset until it is full. Without it, the disk is full before the first byte.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

long room() {
  const char* bytes = std::getenv("FULL_DISK_BYTES");
  return bytes == nullptr ? 0 : std::atol(bytes);
}

std::atomic<long> left{room()};

}  // namespace

extern "C" int fallocate(int, int, off_t, off_t) {
  errno = std::getenv("FULL_DISK_BYTES") == nullptr ? ENOSPC : EOPNOTSUPP;
  return -1;
}

/// Writes what fits, as a file system does, and then fails.
extern "C" ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  const long before = left.fetch_sub(static_cast<long>(size));
  if (before <= 0) {
    errno = ENOSPC;
    return -1;
  }
  const size_t fitting = static_cast<size_t>(before) < size ? static_cast<size_t>(before) : size;
  return ::syscall(SYS_pwrite64, fd, bytes, fitting, offset);
}
