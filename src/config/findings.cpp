#include "findings.h"

#include <algorithm>
#include <tuple>

#include "lora_train/base/error.h"

namespace lora_train {
namespace {

constexpr std::size_t kMaxMistakes = 50;  // more come of one cause, such as a file that is no profile

std::string line_of(const Place& place, const std::string& key, const std::string& what) {
  const std::string where = place.text();
  return (where.empty() ? "" : where + ": ") + key + ": " + what;
}

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
}

}  // namespace

void Findings::mistake(const Place& place, const std::string& key, const std::string& what) {
  const auto is_same = [&](const Mistake& earlier) {
    return earlier.key == key && earlier.place.line == place.line && earlier.place.file == place.file;
  };
  if (mistakes_.size() >= kMaxMistakes) {
    ++num_more_;
    return;
  }
  if (!key.empty() && std::any_of(mistakes_.begin(), mistakes_.end(), is_same)) return;
  mistakes_.push_back({place, key, key.empty() ? what : key + ": " + what});
}

void Findings::mistake_at(const std::string& where, const std::string& text) {
  const std::size_t colon = where.rfind(':');
  const bool has_line = colon != std::string::npos && colon + 1 < where.size() && where.size() - colon < 9 &&
                        where.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  const Place place = has_line ? Place{where.substr(0, colon), std::stoi(where.substr(colon + 1))} : Place{where, 0};
  mistakes_.push_back({place, "", text});
}

void Findings::warn(const Place& place, const std::string& key, const std::string& what) {
  add_once(warnings_, line_of(place, key, what));
}

void Findings::note(const Place& place, const std::string& key, const std::string& what) {
  add_once(notes_, line_of(place, key, what));
}

void Findings::throw_if_any() const {
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
    message += "\n" + (where.empty() ? "" : where + ": ") + sorted[i].text;
  }
  if (num_more_ > 0) message += "\n... and " + std::to_string(num_more_) + " more mistakes.";
  if (!hint_.empty()) message += "\n" + hint_;
  throw ConfigError(sorted.front().place.text(), message);
}

}  // namespace lora_train
