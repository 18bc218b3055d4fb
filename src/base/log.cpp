#include "lora_train/base/log.h"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train {
namespace {

constexpr std::size_t kMaxEarlyLines = 10000;

struct LogState {
  std::mutex mutex;
  LogLevel level = LogLevel::kInfo;
  std::ofstream file;
  std::vector<std::string> early_lines;  ///< until the first file is opened
  bool keeps_early_lines = true;
  std::function<void()> clear_bar, redraw_bar;
};

LogState& state() {
  static LogState instance;
  return instance;
}

std::string with_time(std::string_view prefix, std::string_view line) {
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(time, sizeof time, "%F %T ", &local);
  return std::string(time).append(prefix).append(line);
}

void write_line(LogLevel level, std::string_view prefix, std::string_view line) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  if (level >= log.level) {
    if (log.clear_bar) log.clear_bar();
    std::fprintf(stderr, "%.*s%.*s\n", static_cast<int>(prefix.size()), prefix.data(), static_cast<int>(line.size()),
                 line.data());
    if (log.redraw_bar) log.redraw_bar();
  }
  if (level < LogLevel::kInfo) return;
  if (log.file.is_open()) {
    log.file.clear();  // a disk that was full may have room again
    log.file << with_time(prefix, line) << std::endl;
  } else if (log.keeps_early_lines && log.early_lines.size() < kMaxEarlyLines) {
    log.early_lines.push_back(with_time(prefix, line));
  }
}

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  throw ConfigError("--log-level", "unknown level \"" + std::string(name) + "\"; expected debug, info, warning, error or off");
}

void set_log_level(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  state().level = level;
}

void set_log_file(const std::filesystem::path& file) {
  const std::lock_guard lock(state().mutex);
  state().file.close();
  state().file.clear();
  if (file.empty()) return;
  state().file.open(file, std::ios::app);
  if (!state().file) throw IoError(file.string(), "cannot open the log file for appending");
  for (const auto& line : state().early_lines) state().file << line << '\n';
  state().file.flush();
  state().early_lines = {};
  state().keeps_early_lines = false;
}

void log_debug(std::string_view line) { write_line(LogLevel::kDebug, "", line); }
void log_info(std::string_view line) { write_line(LogLevel::kInfo, "", line); }
void log_warning(std::string_view line) { write_line(LogLevel::kWarning, "warning: ", line); }
void log_error(std::string_view line) { write_line(LogLevel::kError, "error: ", line); }

void set_log_bar(std::function<void()> clear, std::function<void()> redraw) {
  const std::lock_guard lock(state().mutex);
  state().clear_bar = std::move(clear);
  state().redraw_bar = std::move(redraw);
}

}  // namespace lora_train
