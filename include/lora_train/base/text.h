// Text helpers for error messages, reports and lines to paste into a shell, along with fmt::format.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train {

/// The candidate nearest to `name` by edit distance, or empty if none is near enough to be a likely typo.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// The nearest candidates, best first: at most three, each about as near as the best.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates);

/// " Did you mean "a", "b" or "c"?", or nothing without names. Names may repeat.
std::string did_you_mean(const std::vector<std::string>& names);

/// The same for the nearest name of `known`, if one is near enough.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

/// Removes leading and trailing blanks (space, tab, line ends).
std::string trimmed(std::string_view text);

/// True if the text has only such blanks.
bool is_blank(std::string_view text);

/// Converts ASCII letters to lower case.
std::string lower_case(std::string text);

/// "a, b, c"
std::string join(const std::vector<std::string>& items, std::string_view separator = ", ");

/// The number that all of the text is in decimal digits; nothing for other texts and numbers out of range.
template <std::integral Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// "1.5 GiB", "12.0 MiB", "17 B"
std::string format_bytes(double bytes);
template <std::integral Bytes>
std::string format_bytes(Bytes bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// "1h 02m 03s", "4m 05s", "6s"
std::string format_duration(double seconds);

/// The local day of a time in seconds since 1970: "2026-12-01".
std::string local_day(std::int64_t unix_s);
/// Noon of such a day. Nothing for any other text and for a day that does not exist.
std::optional<std::int64_t> noon_of(const std::string& day);

/// "1,234,567"
std::string format_count(long long count);
template <std::integral Count>
std::string format_count(Count count) {
  return format_count(static_cast<long long>(count));
}

/// "1 row", "1,234 rows"
std::string count_of(long long count, std::string_view noun);
template <std::integral Count>
std::string count_of(Count count, std::string_view noun) {
  return count_of(static_cast<long long>(count), noun);
}

/// The words as one line for a POSIX shell, quoted as needed.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace lora_train
