#include "standard_output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/utf8.h"

namespace lora_train::cli {

void print_text(std::string_view text) { print_raw(visible_text(text)); }

void print_raw(std::string_view text) {
  if (write_all(STDOUT_FILENO, text) == text.size() || errno == EPIPE) return;
  fail_with("stdout", "cannot write");
}

void print_line(std::string_view line) { print_text(std::string(line) + "\n"); }

bool stdout_has_color() {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool is_plain =
      (no_color != nullptr && *no_color != '\0') || (terminal != nullptr && std::strcmp(terminal, "dumb") == 0);
  return !is_plain && ::isatty(STDOUT_FILENO) == 1;
}

int stdout_width() {
  const char* const asked = std::getenv("COLUMNS");
  if (const int width = asked ? std::atoi(asked) : 0; width > 0) return width;
  if (::isatty(STDOUT_FILENO) != 1) return 0;
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void silence_standard_output() {
  const int fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (fd >= 0) ::dup2(fd, STDOUT_FILENO);
}

void refuse_foreign(const std::string& command, const std::string& file, bool (*is_ours)(std::string_view start)) {
  constexpr std::size_t kStartBytes = 65536;
  if (file.empty() || path_kind(file) == PathKind::kNone) return;
  const std::string start = read_start(file, kStartBytes);
  if (start.empty() || is_ours(start)) return;
  throw ConfigError(file, "was not written by {}, so it is not replaced: name another file, or delete it yourself",
                    command);
}

void write_result(const std::string& file, std::string_view bytes) {
  write_file_atomic(file, bytes);
  log_info(file + ": written");
}

}  // namespace lora_train::cli
