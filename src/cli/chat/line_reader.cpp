#include "line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::cli {

bool StandardInput::wait(void (*on_wake)(void*), void* context) {
  constexpr int kWakeMs = 200;  // a signal between the look and the wait is seen after this long
  while (requested_stop().empty()) {
    if (on_wake != nullptr) on_wake(context);
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int num_ready = ::poll(&input, 1, kWakeMs);
    if (num_ready < 0 && errno != EINTR) fail_with("stdin", "cannot wait");
    if (num_ready <= 0) continue;
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) text_.append(bytes, static_cast<std::size_t>(count));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EIO) fail_with("stdin", "cannot read");  // EIO: the terminal has gone
    return count > 0;
  }
  return false;
}

std::string StandardInput::take(std::size_t count) {
  std::string taken = text_.substr(0, count);
  text_.erase(0, count);
  return taken;
}

std::optional<std::string> PlainLines::read(const std::string& prompt) {
  if (is_interactive_) write_all(STDERR_FILENO, prompt);
  std::size_t end = input_.text().find('\n');
  while (end == std::string::npos) {
    const std::size_t searched = input_.text().size();
    if (!input_.wait()) break;
    end = input_.text().find('\n', searched);
  }
  if (!requested_stop().empty() || input_.text().empty()) {
    if (is_interactive_) write_all(STDERR_FILENO, "\n");
    return std::nullopt;
  }
  std::string line = input_.take(end == std::string::npos ? end : end + 1);
  if (line.ends_with('\n')) line.pop_back();
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

}  // namespace lora_train::cli
