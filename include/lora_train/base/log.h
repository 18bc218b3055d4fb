// Log lines go to stderr, and to run.log once a run has a folder. stdout is for results only.
// Thread-safe: a line is written whole. The reader of stderr may stop reading: mpirun once it has been asked to stop, a
// pager, a terminal after Ctrl-S.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string_view>

namespace lora_train {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Parses "debug", "info", "warning", "error", "off"; throws ConfigError listing these.
LogLevel parse_log_level(std::string_view name);

/// The lowest level that reaches stderr (run.log gets every line). Default kInfo.
void set_log_level(LogLevel level);

/// Opens `file` for appending; from now on every line also goes there. The first file begins with the lines that were
/// logged before it (the last 10,000). Throws IoError. An empty path closes it. A disk that fills up later loses lines
/// of the file, but never throws.
void set_log_file(const std::filesystem::path& file);

/// Lines of every rank but 0 begin with "[rank n] ", before "warning: ". Default 0.
void set_log_rank(int rank);

void log_debug(std::string_view line);
void log_info(std::string_view line);
void log_warning(std::string_view line);  ///< prefixed "warning: "
void log_error(std::string_view line);    ///< prefixed "error: "

// The same with the arguments of fmt::format.
template <class... Args>
requires(sizeof...(Args) > 0) void log_debug(fmt::format_string<Args...> line, Args&&... args) {
  log_debug(fmt::format(line, std::forward<Args>(args)...));
}
template <class... Args>
requires(sizeof...(Args) > 0) void log_info(fmt::format_string<Args...> line, Args&&... args) {
  log_info(fmt::format(line, std::forward<Args>(args)...));
}
template <class... Args>
requires(sizeof...(Args) > 0) void log_warning(fmt::format_string<Args...> line, Args&&... args) {
  log_warning(fmt::format(line, std::forward<Args>(args)...));
}
template <class... Args>
requires(sizeof...(Args) > 0) void log_error(fmt::format_string<Args...> line, Args&&... args) {
  log_error(fmt::format(line, std::forward<Args>(args)...));
}

/// Writes a line to run.log only.
void log_to_file(LogLevel level, std::string_view line);

/// Registers how to clear and redraw a bar on the terminal's last line, so that log lines do not tear it. Empty
/// functions unregister.
void set_log_bar(std::function<void()> clear, std::function<void()> redraw);

/// Paces log lines about work that may take long: the first after 2 s, then one every 10 s. Thread-safe.
class LinePace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit LinePace(Clock::duration first = std::chrono::seconds(2), Clock::duration next = std::chrono::seconds(10))
      : next_(next), due_(Clock::now() + first) {}

  /// True if the caller should log a line now; among several threads, only one gets true.
  bool is_due() {
    Clock::time_point due = due_;
    const Clock::time_point now = Clock::now();
    return now >= due && due_.compare_exchange_strong(due, now + next_);
  }

 private:
  const Clock::duration next_;
  std::atomic<Clock::time_point> due_;
};

/// From now on, the process waits at most this long for the reader of stderr: lines are lost (run.log has them) until
/// it reads again. Before this call, it waits as long as it takes.
void never_wait_for_stderr(std::chrono::milliseconds patience = std::chrono::seconds(2));

/// True if a line of up to 4096 bytes can be written to stderr without waiting. Thread-safe.
bool can_write_to_stderr();

}  // namespace lora_train
