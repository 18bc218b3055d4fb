// What a profile says to keys and files of other tools. Module convert knows them; config lies below it, so the program introduces them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

struct ForeignVerdict {
  bool is_idle = false;  ///< it cannot change a result here
  std::string reason;    ///< why, or what to do instead
};

/// What decides about some keys: model, seed and epochs of the profile; empty = not said.
struct ForeignContext {
  std::string model, seed, epochs;
};

/// Functions of module convert. As they stand here, a profile knows no other tool.
struct OtherTools {
  /// nullopt if no tool has the key, or lora-train has it itself.
  std::optional<ForeignVerdict> (*judge_key)(const std::string& name, const Value& value,
                                             const ForeignContext& context) =
      [](const std::string&, const Value&, const ForeignContext&) -> std::optional<ForeignVerdict> { return {}; };
  /// One sentence with the lines to run in place of a file that is another tool's; nullopt: it is a profile.
  std::optional<std::string> (*instead_of_file)(const Value& source) = [](const Value&) -> std::optional<std::string> {
    return {};
  };
  /// "lora-train convert FILE makes a profile ...", for a file that is another tool's; nullopt: it is not.
  std::optional<std::string> (*convert_hint)(const Value& source) = [](const Value&) -> std::optional<std::string> {
    return {};
  };
  std::string (*convert_hint_of)(const std::string& file) = [](const std::string&) { return std::string(); };
  /// The keys of all tools.
  std::vector<std::string> (*keys)() = [] { return std::vector<std::string>(); };
};

/// Call it before the first profile is loaded. Not thread-safe.
void introduce_other_tools(const OtherTools& tools);
const OtherTools& other_tools();

}  // namespace lora_train
