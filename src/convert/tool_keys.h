// The tools, and their keys: facts about their schemas (scripts/foreign_keys.py lists these), in keys/*.yaml. Values
// that need more than a table are converted by code.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"

namespace lora_train {

class Converter;

/// What the tables say of one key. In the files, a list has names and {name: detail}.
struct KeyRule {
  enum class Kind {
    kSame,       ///< the values mean the same here; the detail is our name, if it differs
    kConverted,  ///< by code
    kValues,     ///< {value: {our name: our value} or why it has no effect}; `else`: why another value is refused, or
                 ///< what it becomes; `keep`: our name, if it stays as it is; `note` beside our names: a difference.
                 ///< Instead: the key of transformers that has the same words
    kIdle,       ///< without effect here; listed by the reason
    kRefused,    ///< listed by what to do instead; the detail is a value that matches what happens anyway, besides
                 ///< null, false and what is empty
    kOption,     ///< without effect unless another key, by which it is listed, turns a feature on; that is refused
  };
  Kind kind = Kind::kConverted;
  std::string text;  ///< what it is listed by; our name
  Value detail = {};
};

/// All that is known of a tool.
struct Tool {
  ForeignTool id = ForeignTool::kAxolotl;
  void (*convert)(Converter&) = nullptr;
  std::string product, version;  ///< "LLaMA-Factory", "0.9.5"
  std::map<std::string, KeyRule> keys;
  std::map<std::string, KeyRule> entry_keys;               ///< of an entry of `datasets`
  std::map<std::string, Value> defaults;                   ///< that are not ours, by our name
  std::map<std::string, std::vector<std::string>> groups;  ///< of keys that only apply together, or in one place
  std::map<std::string, std::string> templates;            ///< of chats: its name, our chat_template; empty: none

  /// nullptr: it has no such key.
  const KeyRule* find(const std::string& key) const;
};

/// Why a key has no effect with this value, by its rule; nullopt: it has one, or code decides.
std::optional<std::string> idle_reason(const KeyRule& rule, const Value& value);

std::vector<std::string> names_of_keys(const auto& by_name) {
  std::vector<std::string> names;
  for (const auto& entry : by_name) names.push_back(entry.first);
  return names;
}

/// In the order of the enum.
const std::vector<Tool>& all_tools();
const Tool& tool_of(ForeignTool tool);

}  // namespace lora_train
