#include "rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "lora_train/base/console.h"

namespace lora_train::launch {
namespace {

constexpr std::size_t kLongestLine = 1 << 16;  // a longer one is cut

}  // namespace

RankOutput::RankOutput(int fd, int rank) : fd_(fd), prefix_("[rank " + std::to_string(rank) + "] ") {
  if (fd_ >= 0) ::fcntl(fd_, F_SETFL, O_NONBLOCK);
}

RankOutput::~RankOutput() {
  if (fd_ >= 0) ::close(fd_);
}

RankOutput::RankOutput(RankOutput&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), prefix_(std::move(other.prefix_)), rest_(std::move(other.rest_)) {}

void RankOutput::forward() {
  std::array<char, 4096> buffer;
  while (fd_ >= 0) {
    const ssize_t count = ::read(fd_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      ::close(std::exchange(fd_, -1));
      return;
    }
    rest_.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
      write_line(rest_.substr(0, end));
      rest_.erase(0, end + 1);
    }
    if (rest_.size() > kLongestLine) write_line(std::exchange(rest_, {}));
  }
}

void RankOutput::finish() {
  forward();
  if (!rest_.empty()) write_line(std::exchange(rest_, {}));
}

void RankOutput::write_line(const std::string& line) const {
  if (!can_write_to_stderr()) return;
  const std::string text = (line.starts_with(prefix_) ? "" : prefix_) + line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;  // a closed stderr ends no training
    if (count > 0) done += static_cast<std::size_t>(count);
  }
}

}  // namespace lora_train::launch
