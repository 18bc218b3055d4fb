#include "standard_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lora_train/base/error.h"

namespace lora_train::app {

void print_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return;
    if (written < 0) throw IoError("stdout", std::string("cannot write: ") + std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void print_line(std::string_view line) { print_text(std::string(line) + "\n"); }

bool stdout_has_color() {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool is_plain =
      (no_color != nullptr && *no_color != '\0') || (terminal != nullptr && std::strcmp(terminal, "dumb") == 0);
  return !is_plain && ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace lora_train::app
