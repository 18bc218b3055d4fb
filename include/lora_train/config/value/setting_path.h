// Places inside a value, as --set names them: "datasets[0].path", "datasets[+].path", "rank_pattern.q_proj".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// One step: a member by name, an item by index, or a new item at the end.
struct PathStep {
  std::string name;  ///< empty for an index
  std::size_t index = 0;
  bool is_append = false;
  bool is_name() const { return !name.empty(); }
};

/// nullopt when `path` is not of that form. The first step is always a name.
std::optional<std::vector<PathStep>> parse_setting_path(const std::string& path);

/// Sets the place that steps[first..] name inside `root`; null becomes a map or a list where one is needed, and a
/// single value becomes a list of one. Returns what is wrong, or an empty text.
std::string set_at(Value& root, const std::vector<PathStep>& steps, std::size_t first, const Value& value);

}  // namespace lora_train
