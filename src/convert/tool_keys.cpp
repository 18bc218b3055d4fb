#include "tool_keys.h"

#include <algorithm>
#include <set>

namespace lora_train {
namespace {

bool has_name(const std::vector<const char*>& names, const std::string& name) {
  return std::ranges::any_of(names, [&](const char* known) { return name == known; });
}

void remove_key(ToolKeys& keys, const std::string& name) {
  const auto is_it = [&](const char* known) { return name == known; };
  std::erase_if(keys.same, [&](const SameValue& same) { return is_it(same.name); });
  std::erase_if(keys.converted, is_it);
  for (auto& group : keys.idle) std::erase_if(group.names, is_it);
  for (auto& group : keys.refused) std::erase_if(group.keys, [&](const RefusedKey& key) { return is_it(key.name); });
  for (auto& group : keys.options) std::erase_if(group.names, is_it);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

const SameValue* ToolKeys::find_same(const std::string& name) const {
  const auto found = std::ranges::find_if(same, [&](const SameValue& entry) { return name == entry.name; });
  return found == same.end() ? nullptr : &*found;
}

const char* ToolKeys::find_idle(const std::string& name) const {
  for (const auto& group : idle) {
    if (has_name(group.names, name)) return group.reason;
  }
  return nullptr;
}

const RefusedKey* ToolKeys::find_refused(const std::string& name, const char** advice) const {
  for (const auto& group : refused) {
    for (const auto& key : group.keys) {
      if (name != key.name) continue;
      *advice = group.advice;
      return &key;
    }
  }
  return nullptr;
}

const char* ToolKeys::find_option(const std::string& name) const {
  for (const auto& group : options) {
    if (has_name(group.names, name)) return group.of;
  }
  return nullptr;
}

std::vector<std::string> ToolKeys::all() const {
  std::set<std::string> names(converted.begin(), converted.end());
  for (const auto& entry : same) names.insert(entry.name);
  for (const auto& group : idle) names.insert(group.names.begin(), group.names.end());
  for (const auto& group : options) names.insert(group.names.begin(), group.names.end());
  for (const auto& group : refused) {
    for (const auto& key : group.keys) names.insert(key.name);
  }
  return {names.begin(), names.end()};
}

const ToolKeys& keys_of(ForeignTool tool) {
  switch (tool) {
    case ForeignTool::kAxolotl: return axolotl_keys();
    case ForeignTool::kLlamaFactory: return llamafactory_keys();
    case ForeignTool::kTrl: break;
  }
  return trl_keys();
}

ToolKeys joined(ToolKeys base, const ToolKeys& more) {
  for (const auto& name : more.all()) remove_key(base, name);
  append(base.same, more.same);
  append(base.converted, more.converted);
  append(base.idle, more.idle);
  append(base.refused, more.refused);
  append(base.options, more.options);
  return base;
}

}  // namespace lora_train
