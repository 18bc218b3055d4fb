#include "axolotl_turns.h"

#include <map>
#include <set>

#include "lora_train/base/text.h"

namespace lora_train {

void map_default_roles(DataEntry& entry, const std::filesystem::path& file) {
  const bool is_known = !first_row_keys(file).empty();
  for (const auto& [ours, theirs] : {std::pair{"user", "human"}, {"assistant", "gpt"}}) {
    if (!is_known || has_string(file, theirs)) entry.map(ours, theirs);
  }
}

std::optional<std::string> map_roles(DataEntry& entry, const Value& roles) {
  static const std::map<std::string, std::set<std::string>> known = {
      {"user", {"human", "user"}},
      {"assistant", {"gpt", "assistant"}},
      {"system", {"system"}},
      {"tool", {"tool", "observation", "function_response"}}};
  std::set<std::string> named;
  for (const auto& [target, sources] : roles.members) {
    const auto found = known.find(target);
    for (const auto& source : sources.is_list() ? sources.items : std::vector<Value>{sources}) {
      if (found != known.end() && found->second.contains(source.text)) continue;
      if (found == known.end() || target == "system" || !named.insert(target).second) return source.text;
      entry.map(target, source.text);
    }
  }
  return std::nullopt;
}

std::string map_training(DataEntry& entry, const std::string& theirs, const std::filesystem::path& file) {
  const std::string read = theirs.empty() || theirs == "weight" ? theirs : "train";
  if (read == "train") entry.map("train", theirs);
  const bool is_known = !first_row_keys(file).empty();
  std::vector<std::string> unread;
  for (const char* field : {"train", "weight"}) {
    if (field == read || (is_known && !has_string(file, field))) continue;
    entry.leave_unread(field);
    unread.emplace_back(field);
  }
  return join(unread, " and ");
}

}  // namespace lora_train
