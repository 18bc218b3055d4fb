// stdout: results only, as text or JSON, or into a file. Everything else goes to stderr through base/log.h.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::cli {

/// Writes the text and flushes. Shows control characters, which names and text of files may hold, as escapes
/// (visible_text). A reader that has gone away (EPIPE) is not an error; a full disk is: IoError.
void print_text(std::string_view text);

/// The same, byte for byte: for colours, and for text whose reader wants every byte.
void print_raw(std::string_view text);

/// print_text with a line end.
void print_line(std::string_view line);

/// True if stdout is a terminal that may show colours: not with NO_COLOR or TERM=dumb.
bool stdout_has_color();

/// Discards everything written to stdout after this call.
void silence_standard_output();

/// Columns of stdout's terminal; 0 if it is not a terminal, and a line may have any length.
int stdout_width();

/// Throws ConfigError(file) if a file exists that `command` did not write, judging by its first 64 KiB. Call it before
/// any work. An empty name means no file.
void refuse_foreign(const std::string& command, const std::string& file, bool (*is_ours)(std::string_view start));

/// Writes the file atomically and logs it. Throws IoError.
void write_result(const std::string& file, std::string_view bytes);

inline nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

/// An array of what `write` makes of each item.
nlohmann::ordered_json json_list(const auto& items, const auto& write) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& item : items) list.push_back(write(item));
  return list;
}

/// One line. Bytes that are not UTF-8 become U+FFFD.
inline std::string to_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Prints a command's result: one line of JSON, or `text`.
inline void print_json_or_text(bool as_json, const nlohmann::ordered_json& object, const std::string& text) {
  print_line(as_json ? to_line(object) : text);
}

}  // namespace lora_train::cli
