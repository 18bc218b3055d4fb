#include "peer_process.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "lora_train/launch/world.h"

namespace lora_train::ranks {
namespace {

/// The same for processes that see each other's process numbers, and for no others.
std::string process_space() {
  struct stat space {};
  const bool is_known = ::stat("/proc/self/ns/pid", &space) == 0;
  return launch::host_id() + "/" + (is_known ? std::to_string(space.st_ino) : "");
}

}  // namespace

std::string own_process() { return process_space() + " " + std::to_string(::getpid()); }

PeerProcess::PeerProcess(const std::string& named) {
  const std::size_t blank = named.rfind(' ');
  pid_ = std::atol(named.c_str() + blank + 1);
  if (named.substr(0, blank) != process_space()) return;
  fd_ = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid_), 0));
  had_ended_ = fd_ < 0 && errno == ESRCH;
}

PeerProcess::~PeerProcess() {
  if (fd_ >= 0) ::close(fd_);
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)), had_ended_(other.had_ended_) {}

bool PeerProcess::has_ended() const {
  pollfd process{fd_, POLLIN, 0};
  return had_ended_ || (fd_ >= 0 && ::poll(&process, 1, 0) == 1);
}

}  // namespace lora_train::ranks
