#include "lora_train/config/value/findings.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

namespace lora_train {
namespace {

constexpr std::size_t kMaxMistakes = 50;  // more have one cause, such as a file that is not a profile

[[noreturn]] void throw_error(ExitCode code, const std::string& where, const std::string& message) {
  switch (code) {
    case ExitCode::kData: throw DataError(where, message);
    case ExitCode::kFormat: throw FormatError(where, message);
    case ExitCode::kIo: throw IoError(where, message);
    default: throw ConfigError(where, message);
  }
}

std::string line_of(const Place& place, const std::string& key, const std::string& what) {
  const std::string where = place.text();
  return (where.empty() ? "" : where + ": ") + (names_key(place, key) ? what : fmt::format("{}: {}", key, what));
}

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
}

}  // namespace

bool names_key(const Place& place, const std::string& key) {
  if (place.file.starts_with(key + "=")) return true;
  if (!place.file.starts_with("--")) return false;
  std::string name = place.file.substr(2);
  std::ranges::replace(name, '-', '_');
  return name == key;
}

Place parse_place(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const bool has_line = colon != std::string::npos && colon + 1 < text.size() && text.size() - colon < 9 &&
                        text.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return has_line ? Place{text.substr(0, colon), std::stoi(text.substr(colon + 1))} : Place{text, 0};
}

void Findings::mistake(const Place& place, const std::string& key, const std::string& what, ExitCode code) {
  const auto is_same = [&](const Mistake& earlier) {
    return earlier.key == key && earlier.place.line == place.line && earlier.place.file == place.file;
  };
  if (mistakes_.size() >= kMaxMistakes) {
    ++num_more_;
    return;
  }
  if (!key.empty() && std::any_of(mistakes_.begin(), mistakes_.end(), is_same)) return;
  mistakes_.push_back({place, key, key.empty() || names_key(place, key) ? what : key + ": " + what, code});
}

void Findings::hint(const std::string& line) { add_once(hints_, line); }

bool Findings::is_wrong(const std::string& key) const {
  return std::any_of(mistakes_.begin(), mistakes_.end(), [&](const Mistake& mistake) {
    if (!mistake.key.starts_with(key)) return false;
    const std::size_t size = key.size();
    return mistake.key.size() == size || mistake.key[size] == '.' || mistake.key[size] == '[';
  });
}

void Findings::throw_mistakes() const {
  if (mistakes_.empty()) return;
  std::vector<std::string> files;
  for (const auto& mistake : mistakes_) {
    if (std::find(files.begin(), files.end(), mistake.place.file) == files.end()) files.push_back(mistake.place.file);
  }
  const auto rank = [&](const Mistake& mistake) {
    const auto file = std::find(files.begin(), files.end(), mistake.place.file) - files.begin();
    return std::tuple(mistake.place.file.empty(), file, mistake.place.line);
  };
  auto sorted = mistakes_;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Mistake& a, const Mistake& b) { return rank(a) < rank(b); });
  std::string message = sorted.front().text;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const std::string where = sorted[i].place.text();
    message += fmt::format("\n{}{}", where.empty() ? "" : where + ": ", sorted[i].text);
  }
  if (num_more_ > 0) message += fmt::format("\n... and {} more mistakes.", num_more_);
  if (!hints_.empty() && std::string_view(".?!").find(message.back()) == std::string_view::npos) message += ".";
  for (const auto& hint : hints_) message += "\n" + hint;
  const ExitCode code = sorted.front().code;
  const bool is_one_kind =
      std::all_of(sorted.begin(), sorted.end(), [&](const Mistake& mistake) { return mistake.code == code; });
  throw_error(is_one_kind ? code : ExitCode::kUsage, sorted.front().place.text(), message);
}

void Findings::warn(const Place& place, const std::string& key, const std::string& what) {
  add_once(warnings_, line_of(place, key, what));
}

void Findings::note(const Place& place, const std::string& key, const std::string& what) {
  add_once(notes_, line_of(place, key, what));
}

}  // namespace lora_train
