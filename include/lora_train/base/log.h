// Log lines go to stderr, and to run.log once a run has a folder. stdout is for results only.
// Thread-safe: a line is written whole.
#pragma once

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
/// logged before it (the last 10,000). Throws IoError. An empty path closes it. A disk that fills up later costs lines of the
/// file, never an exception.
void set_log_file(const std::filesystem::path& file);

/// Lines of every rank but 0 begin with "[rank n] ", before "warning: ". Default 0.
void set_log_rank(int rank);

void log_debug(std::string_view line);
void log_info(std::string_view line);
void log_warning(std::string_view line);  ///< prefixed "warning: "
void log_error(std::string_view line);    ///< prefixed "error: "

/// A line for run.log alone.
void log_to_file(LogLevel level, std::string_view line);

/// A bar that is drawn on the terminal's last line registers how to clear and how to redraw itself, so that log lines
/// do not tear it. Empty functions unregister.
void set_log_bar(std::function<void()> clear, std::function<void()> redraw);

}  // namespace lora_train
