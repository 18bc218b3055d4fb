#include "lora_train/config/value/findings.h"

#include <algorithm>

namespace lora_train {
namespace {

std::string line_of(const Place& place, const std::string& key, const std::string& what) {
  const std::string where = place.text();
  return (where.empty() ? "" : where + ": ") + (names_key(place, key) ? what : key + ": " + what);
}

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
}

}  // namespace

void Findings::mistake(const Place& place, const std::string& key, const std::string& what) {
  mistakes_.add(place, key, what);
}

void Findings::warn(const Place& place, const std::string& key, const std::string& what) {
  add_once(warnings_, line_of(place, key, what));
}

void Findings::note(const Place& place, const std::string& key, const std::string& what) {
  add_once(notes_, line_of(place, key, what));
}

}  // namespace lora_train
