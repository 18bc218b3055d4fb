#include "table_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::data {
namespace {

constexpr std::chrono::seconds kShortWait(1), kWaitReportInterval(10);
constexpr std::chrono::milliseconds kPollInterval(50);

/// False if another process deleted the file between open() and flock().
bool has_the_name(int fd, const std::filesystem::path& file) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && S_ISREG(held.st_mode) && ::lstat(file.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

TableLock::TableLock(const std::filesystem::path& file, Mode mode)
    // NFS grants an exclusive lock only on a file open for writing.
    : fd_(::open(file.c_str(), (mode == Mode::kShared ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
  if (fd_ < 0) return;
  while (::flock(fd_, mode == Mode::kShared ? LOCK_SH : LOCK_EX | LOCK_NB) != 0) {
    is_busy_ = errno == EWOULDBLOCK;
    is_unsupported_ = !is_busy_ && errno != EINTR;
    if (errno != EINTR) return;
    throw_if_stop_requested();
  }
  is_held_ = has_the_name(fd_, file);
}

TableLock::~TableLock() {
  if (fd_ >= 0) ::close(fd_);
}

BuildLock::BuildLock(const std::filesystem::path& folder, const std::string& key, const std::string& what)
    : fd_(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) {
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return;
  try {
    wait(key, what);
  } catch (...) {
    close();
    throw;
  }
}

BuildLock::~BuildLock() { close(); }

void BuildLock::wait(const std::string& key, const std::string& what) const {
  struct flock byte {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = static_cast<off_t>(std::stoull(hash128_hex(key).substr(0, 15), nullptr, 16));
  byte.l_len = 1;
  auto next_report = std::chrono::steady_clock::now() + kShortWait;
  while (::fcntl(fd_, F_OFD_SETLK, &byte) != 0 && (errno == EAGAIN || errno == EACCES || errno == EINTR)) {
    throw_if_stop_requested();
    if (std::chrono::steady_clock::now() >= next_report) {
      next_report = std::chrono::steady_clock::now() + kWaitReportInterval;
      log_info(what + "another process is building the token table; waiting for it");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

void BuildLock::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::pair<std::unique_ptr<AtomicFileWriter>, std::shared_ptr<TableLock>> open_locked(const std::filesystem::path& file,
                                                                                     std::size_t expected_bytes) {
  constexpr int kMaxAttempts = 10;
  for (int i = 0; i < kMaxAttempts; ++i) {
    auto writer = std::make_unique<AtomicFileWriter>(file, expected_bytes);
    auto lock = std::make_shared<TableLock>(writer->temporary(), TableLock::Mode::kShared);
    if (lock->is_held() || lock->is_unsupported()) return {std::move(writer), std::move(lock)};
    // Another process mistook the new file for one of a dead process: try again.
  }
  throw IoError(file.string(), "cannot lock its temporary file");
}

}  // namespace lora_train::data
