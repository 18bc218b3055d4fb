// What a profile says to a key of another tool: the same as convert, for the same value.
#pragma once

#include <optional>
#include <string>

#include "lora_train/config/other_tools.h"

namespace lora_train {

/// nullopt if no tool has the key, or lora-train has it itself. Where several tools have it, one that refuses the value decides.
/// May read what the value names (a DeepSpeed configuration, the tokenizer of the model).
std::optional<ForeignVerdict> judge_foreign_key(const std::string& name, const Value& value,
                                                const ForeignContext& context);

}  // namespace lora_train
