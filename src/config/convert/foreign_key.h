// What a profile says to a key of another tool: the same as convert, for the same value.
#pragma once

#include <optional>
#include <string>

#include "value/value.h"

namespace lora_train {

struct ForeignVerdict {
  bool is_idle = false;  ///< it cannot change a result here
  std::string reason;    ///< why, or what to do instead
};

/// What decides about some keys: model, seed and epochs of the profile; empty = not said.
struct ForeignContext {
  std::string model, seed, epochs;
};

/// nullopt if no tool has the key, or lora-train has it itself. Where several tools have it, one that refuses the value decides.
/// May read what the value names (a DeepSpeed configuration, the tokenizer of the model).
std::optional<ForeignVerdict> judge_foreign_key(const std::string& name, const Value& value,
                                                const ForeignContext& context);

}  // namespace lora_train
