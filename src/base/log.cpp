#include "lora_train/base/log.h"

// The words that %l writes: trace, debug, info, warning, error, critical, off.
#define SPDLOG_LEVEL_NAMES \
  { "", "", "", "warning: ", "error: ", "", "" }
#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"

namespace lora_train {
namespace {

namespace sinks = spdlog::sinks;
using Level = spdlog::level::level_enum;

constexpr std::size_t kMaxEarlyLines = 10000;

std::atomic<int> patience_ms = -1;  ///< -1: forever
std::atomic<bool> has_stalled = false;

Level spdlog_level(LogLevel level) {
  constexpr Level kLevels[] = {Level::debug, Level::info, Level::warn, Level::err, Level::off};
  return kLevels[static_cast<int>(level)];
}

class Console final : public sinks::stderr_sink_st {
 public:
  void log(const spdlog::details::log_msg& line) override {
    if (!can_write_to_stderr()) {
      ++num_lost_;
      return;
    }
    if (clear_bar) clear_bar();
    if (num_lost_ > 0) {
      const std::string lost = fmt::format("{} lines are missing here; run.log has them", std::exchange(num_lost_, 0));
      sinks::stderr_sink_st::log({"", Level::warn, lost});
    }
    sinks::stderr_sink_st::log(line);
    if (redraw_bar) redraw_bar();
  }

  std::function<void()> clear_bar, redraw_bar;

 private:
  long num_lost_ = 0;
};

struct Log {
  std::mutex mutex;    // guards everything here: the sinks have none
  std::ofstream file;  // if it is closed or its disk is full, the sink's lines are lost and nothing is thrown
  std::shared_ptr<Console> console = std::make_shared<Console>();
  std::shared_ptr<sinks::ostream_sink_st> file_sink = std::make_shared<sinks::ostream_sink_st>(file, true);
  std::shared_ptr<sinks::ringbuffer_sink_st> early_lines;  // until the first file is opened
  spdlog::logger logger{"", {console, file_sink}};

  Log() : early_lines(std::make_shared<sinks::ringbuffer_sink_st>(kMaxEarlyLines)) {
    logger.sinks().push_back(early_lines);
    for (const auto& sink : logger.sinks()) sink->set_level(Level::debug);
    console->set_level(Level::info);
    logger.set_level(Level::debug);
    set_patterns("");
  }

  void set_patterns(const std::string& prefix) {
    console->set_pattern(prefix + "%l%v");
    file_sink->set_pattern(fmt::format("%Y-%m-%d %H:%M:%S {}%l%v", prefix));
  }

  void write_early_lines() {
    for (const auto& line : early_lines->last_raw()) file_sink->log(line);
    logger.sinks().pop_back();
    early_lines.reset();
  }
};

Log& state() {
  static Log instance;
  return instance;
}

void write_line(Level level, std::string_view line) {
  Log& log = state();
  const std::lock_guard lock(log.mutex);
  log.file.clear();  // a disk that was full may have room again
  const std::string visible = visible_text(line);
  log.logger.log(level, spdlog::string_view_t(visible.data(), visible.size()));
}

}  // namespace

void never_wait_for_stderr(std::chrono::milliseconds patience) {
  has_stalled = false;
  patience_ms = static_cast<int>(patience.count());
}

bool can_write_to_stderr() {
  if (patience_ms < 0) return true;
  pollfd console{STDERR_FILENO, POLLOUT, 0};
  const int num_ready = ::poll(&console, 1, has_stalled ? 0 : patience_ms.load());
  has_stalled = num_ready == 0;
  return num_ready != 0;  // write() will find an error
}

LogLevel parse_log_level(std::string_view name) {
  constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found != std::end(kNames)) return static_cast<LogLevel>(found - std::begin(kNames));
  throw ConfigError("--log-level", "unknown level \"{}\"; expected debug, info, warning, error or off", name);
}

void set_log_level(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  state().console->set_level(spdlog_level(level));
}

void set_log_rank(int rank) {
  const std::lock_guard lock(state().mutex);
  state().set_patterns(rank == 0 ? "" : fmt::format("[rank {}] ", rank));
}

void set_log_file(const std::filesystem::path& file) {
  Log& log = state();
  const std::lock_guard lock(log.mutex);
  log.file.close();
  if (file.empty()) return;
  log.file.clear();
  log.file.open(file, std::ios::app);
  if (!log.file) throw IoError(file.string(), "cannot open the log file for appending");
  if (log.early_lines) log.write_early_lines();
}

void log_debug(std::string_view line) { write_line(Level::debug, line); }
void log_info(std::string_view line) { write_line(Level::info, line); }
void log_warning(std::string_view line) { write_line(Level::warn, line); }
void log_error(std::string_view line) { write_line(Level::err, line); }

void log_to_file(LogLevel level, std::string_view line) {
  Log& log = state();
  const std::lock_guard lock(log.mutex);
  log.file.clear();
  const std::string visible = visible_text(line);
  log.file_sink->log({"", spdlog_level(level), spdlog::string_view_t(visible.data(), visible.size())});
}

void set_log_bar(std::function<void()> clear, std::function<void()> redraw) {
  const std::lock_guard lock(state().mutex);
  state().console->clear_bar = std::move(clear);
  state().console->redraw_bar = std::move(redraw);
}

}  // namespace lora_train
