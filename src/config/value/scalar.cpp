#include "lora_train/config/value/scalar.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

std::optional<bool> parse_bool(const std::string& text) {
  const std::string word = lower_case(text);
  if (word == "true" || word == "on" || word == "yes") return true;
  if (word == "false" || word == "off" || word == "no") return false;
  return std::nullopt;
}

std::optional<double> parse_number(const std::string& text) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const char* const first = begin != end && *begin == '-' ? begin + 1 : begin;
  // from_chars would also take "inf" and "nan".
  if (first == end || !(std::isdigit(static_cast<unsigned char>(*first)) || *first == '.')) return std::nullopt;
  double value = 0;
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t value = 0;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code == std::errc() && stop == end) return value;
  const auto number = parse_number(text);
  if (!number || *number != std::floor(*number) || std::fabs(*number) > 9e15) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<double> parse_duration(const std::string& text) {
  if (const auto seconds = parse_number(text)) return seconds;
  double total = 0;
  std::size_t at = 0;
  double last_unit = 1e9;
  while (at < text.size()) {
    const std::size_t unit_at = text.find_first_not_of("0123456789.", at);
    if (unit_at == std::string::npos || unit_at == at) return std::nullopt;
    const auto count = parse_number(text.substr(at, unit_at - at));
    const char letter = text[unit_at];
    const double unit = letter == 'd' ? 86400 : letter == 'h' ? 3600 : letter == 'm' ? 60 : letter == 's' ? 1 : 0;
    if (!count || unit == 0 || unit >= last_unit) return std::nullopt;
    total += *count * unit;
    last_unit = unit;
    at = unit_at + 1;
  }
  return text.empty() ? std::nullopt : std::optional<double>(total);
}

std::string duration_text(double seconds) {
  if (seconds != std::floor(seconds) || seconds < 1 || seconds > 1e9) return number_value(seconds).text;
  auto left = static_cast<long long>(seconds);
  std::string out;
  for (const auto& [letter, unit] : {std::pair{'h', 3600LL}, std::pair{'m', 60LL}, std::pair{'s', 1LL}}) {
    if (left >= unit) out += std::to_string(left / unit) + letter;
    left %= unit;
  }
  return out;
}

}  // namespace lora_train
