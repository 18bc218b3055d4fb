#include "lora_train/base/text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <string_view>
#include <utility>

namespace lora_train {
namespace {

constexpr const char* kBlanks = " \t\r\n";

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr std::size_t kMost = 3;
  const std::size_t farthest = std::max<std::size_t>(2, name.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance <= farthest) found.emplace_back(distance, candidate);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : found) {
    if (names.size() == kMost || distance > found.front().first + 1) break;
    names.push_back(candidate);
  }
  return names;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  const std::vector<std::string> names = nearest_names(name, candidates);
  return names.empty() ? "" : names.front();
}

std::string did_you_mean(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const auto& name : names) {
    const std::string word = fmt::format("\"{}\"", name);
    if (std::find(quoted.begin(), quoted.end(), word) == quoted.end()) quoted.push_back(word);
  }
  if (quoted.empty()) return {};
  const std::string last = quoted.back();
  quoted.pop_back();
  return fmt::format(" Did you mean {}{}?", quoted.empty() ? "" : join(quoted) + " or ", last);
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : did_you_mean({nearest});
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
}

bool is_blank(std::string_view text) { return text.find_first_not_of(kBlanks) == std::string_view::npos; }

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string join(const std::vector<std::string>& items, std::string_view separator) {
  std::string text;
  for (const auto& item : items) {
    if (&item != &items.front()) text += separator;
    text += item;
  }
  return text;
}

std::string format_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024.0 && unit < 4) {
    bytes /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  if (total >= 3600) return fmt::format("{}h {:02}m {:02}s", total / 3600, total / 60 % 60, total % 60);
  return total >= 60 ? fmt::format("{}m {:02}s", total / 60, total % 60) : fmt::format("{}s", total);
}

std::string local_day(std::int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &local)};
}

std::optional<std::int64_t> noon_of(const std::string& day) {
  std::tm local{};
  if (::strptime(day.c_str(), "%Y-%m-%d", &local) == nullptr) return std::nullopt;
  local.tm_hour = 12;
  local.tm_isdst = -1;
  const std::int64_t noon = std::mktime(&local);
  return day.size() == 10 && local_day(noon) == day ? std::optional(noon) : std::nullopt;
}

std::string format_count(long long count) {
  std::string digits = std::to_string(std::llabs(count));
  for (auto place = static_cast<long long>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return count < 0 ? "-" + digits : digits;
}

std::string count_of(long long count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

}  // namespace lora_train
