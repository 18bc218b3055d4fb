#include "lora_train/config/value/setting_path.h"

#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

std::string item_problem(const Value& list, std::size_t index) {
  return "there is no item " + std::to_string(index) + ": the list has " + std::to_string(list.items.size()) +
         ". [+] appends one.";
}

// A new item shares its place with the value that is set, so that later mistakes name it.
Value& new_item(Value& list, const Value& value) {
  Value item;
  item.place = value.place;
  list.items.push_back(std::move(item));
  return list.items.back();
}

}  // namespace

std::optional<std::vector<PathStep>> parse_setting_path(const std::string& path) {
  std::vector<PathStep> steps;
  std::size_t at = 0;
  while (at < path.size()) {
    if (path[at] == '[') {
      const std::size_t close = path.find(']', at);
      if (close == std::string::npos || steps.empty()) return std::nullopt;
      const std::string inside = path.substr(at + 1, close - at - 1);
      const auto index = parse_integer(inside);
      if (inside != "+" && (!index || *index < 0)) return std::nullopt;
      steps.push_back({"", inside == "+" ? 0 : static_cast<std::size_t>(*index), inside == "+"});
      at = close + 1;
    } else {
      if (path[at] == '.' && steps.empty()) return std::nullopt;
      if (path[at] == '.') ++at;
      const std::size_t end = std::min(path.find_first_of(".[", at), path.size());
      if (end == at) return std::nullopt;
      steps.push_back({path.substr(at, end - at), 0, false});
      at = end;
    }
  }
  return steps.empty() ? std::nullopt : std::optional(std::move(steps));
}

std::string set_at(Value& root, const std::vector<PathStep>& steps, std::size_t first, const Value& value) {
  if (first == steps.size()) {
    root = value;
    return {};
  }
  const PathStep& step = steps[first];
  if (step.is_name()) {
    if (root.is_null()) root.kind = Value::Kind::kMap;
    // `datasets: [a.jsonl]` names a path without a map around it.
    if (root.is_scalar()) {
      Value map;
      map.kind = Value::Kind::kMap;
      map.place = root.place;
      map.members.push_back({"path", root});
      root = std::move(map);
    }
    if (!root.is_map()) return "." + step.name + ": this is a list. Use [0] or [+] first.";
    Value* member = root.find(step.name);
    if (!member) {
      Value fresh;
      fresh.place = value.place;
      root.members.push_back({step.name, std::move(fresh)});
      member = &root.members.back().value;
    }
    return set_at(*member, steps, first + 1, value);
  }
  if (root.is_null()) root.kind = Value::Kind::kList;
  if (root.is_scalar()) {
    Value only = root;
    root = list_value({only});
    root.place = only.place;
  }
  if (!root.is_list()) return "this is a map. Name one of its keys.";
  if (step.is_append) return set_at(new_item(root, value), steps, first + 1, value);
  if (step.index >= root.items.size()) return item_problem(root, step.index);
  return set_at(root.items[step.index], steps, first + 1, value);
}

}  // namespace lora_train
