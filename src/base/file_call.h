// Private to the module: retries and error handling around calls of FileOps.
#pragma once

#include <cerrno>
#include <filesystem>

#include "lora_train/base/file.h"
#include "lora_train/base/file_ops.h"

namespace lora_train {

inline constexpr int kMaxInterruptions = 1000;

/// Repeats a call that a signal interrupts. Not forever: a system that does nothing else is an error too.
template <typename Call>
auto retry_interrupted(const Call& call) {
  auto result = call();
  for (int i = 0; i < kMaxInterruptions && result < 0 && errno == EINTR; ++i) result = call();
  return result;
}

/// `what` says what could not be done if the call returns -1.
template <typename Call>
auto checked(const std::filesystem::path& path, const char* what, const Call& call) {
  const auto result = retry_interrupted(call);
  if (result < 0) fail_with(path, what);
  return result;
}

/// Closes when it leaves the scope.
class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() {
    if (fd_ >= 0) file_ops().close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace lora_train
