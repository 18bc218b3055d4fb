#include "tool_keys.h"

#include <string_view>
#include <utility>

#include "converter.h"
#include "lora_train/base/error.h"

namespace lora_train {

namespace embedded {  // made of keys/*.yaml
extern const std::string_view kAxolotl, kLlamaFactory, kTransformers, kTrl;
}  // namespace embedded

namespace {

const std::vector<Value::Member>& members_of(const Value* map) {
  static const std::vector<Value::Member> none;
  return map ? map->members : none;
}

using Keys = std::map<std::string, KeyRule>;

void add_rules(Keys& keys, KeyRule::Kind kind, const std::string& text, const Value& names) {
  const auto add = [&](const std::string& name, KeyRule rule) {
    if (!keys.emplace(name, std::move(rule)).second) throw ConfigError(names.place.text(), "has {} twice.", name);
  };
  for (const Value& item : names.items) {
    if (!item.is_map()) add(item.text, {kind, text.empty() ? item.text : text});
    for (const auto& [name, detail] : item.members) add(name, {kind, text.empty() ? detail.text : text, detail});
  }
}

Keys read_keys(const Value& table, const Keys& trainers) {
  using Kind = KeyRule::Kind;
  Keys keys;
  for (const auto& [part, kind] : {std::pair{"same", Kind::kSame}, {"converted", Kind::kConverted}}) {
    if (const Value* names = table.find(part)) add_rules(keys, kind, "", *names);
  }
  for (const auto& [part, kind] :
       {std::pair{"idle", Kind::kIdle}, {"refused", Kind::kRefused}, {"option", Kind::kOption}}) {
    for (const auto& [text, names] : members_of(table.find(part))) add_rules(keys, kind, text, names);
  }
  for (const auto& [name, words] : members_of(table.find("values")))
    keys[name] = words.is_scalar() ? trainers.at(words.text) : KeyRule{Kind::kValues, "", words};
  return keys;
}

/// `trainer`: that of transformers, which the tool `extends`, or of which it shares the words of some keys.
Tool read_tool(ForeignTool id, void (*convert)(Converter&), std::string_view yaml, const Tool& trainer, bool extends) {
  const Value table = parse_yaml(std::string(yaml), {"keys of a tool", 0});
  Tool tool;
  tool.id = id;
  tool.convert = convert;
  if (const Value* product = table.find("product")) tool.product = product->text;
  if (const Value* version = table.find("version")) tool.version = version->text;
  tool.keys = read_keys(table, trainer.keys);
  if (const Value* entry = table.find("datasets")) tool.entry_keys = read_keys(*entry, {});
  for (const auto& [ours, value] : members_of(table.find("defaults"))) tool.defaults[ours] = value;
  for (const auto& [name, keys] : members_of(table.find("groups"))) tool.groups[name] = names_in(keys);
  for (const auto& [theirs, ours] : members_of(table.find("templates"))) tool.templates[theirs] = ours.text;
  if (const Value* others = table.find("other_templates")) {
    for (const std::string& theirs : names_in(*others)) tool.templates[theirs] = "";
  }
  if (!extends) return tool;
  tool.keys.insert(trainer.keys.begin(), trainer.keys.end());
  tool.defaults.insert(trainer.defaults.begin(), trainer.defaults.end());
  tool.groups.insert(trainer.groups.begin(), trainer.groups.end());
  return tool;
}

}  // namespace

const KeyRule* Tool::find(const std::string& key) const {
  const auto found = keys.find(key);
  return found == keys.end() ? nullptr : &found->second;
}

const std::vector<Tool>& all_tools() {
  static const std::vector<Tool> tools = [] {
    const Tool trainer = read_tool({}, nullptr, embedded::kTransformers, {}, false);
    return std::vector<Tool>{
        read_tool(ForeignTool::kAxolotl, convert_axolotl, embedded::kAxolotl, trainer, false),
        read_tool(ForeignTool::kLlamaFactory, convert_llamafactory, embedded::kLlamaFactory, trainer, true),
        read_tool(ForeignTool::kTrl, convert_trl, embedded::kTrl, trainer, true)};
  }();
  return tools;
}

const Tool& tool_of(ForeignTool tool) { return all_tools()[static_cast<std::size_t>(tool)]; }

}  // namespace lora_train
