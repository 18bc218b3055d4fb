// What a file or a key of another tool is recognised by, and what to say of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"

namespace lora_train {

/// "LLaMA-Factory": title_of without the version.
std::string product_name(ForeignTool tool);

/// The keys of `source` that only `tool` has.
std::vector<std::string> evidence_for(ForeignTool tool, const Value& source);

/// The tool that has most keys of its own in `source`, and those. Several tools come in the order of their number.
std::vector<std::pair<ForeignTool, std::vector<std::string>>> possible_tools(const Value& source);

/// Of a file of LLaMA-Factory that exports a model, answers with it or writes predictions: one sentence with the lines to run in its
/// place. nullopt: it trains.
std::optional<std::string> instead_of_training(const Value& source);

/// Whether it is a profile of lora-train: it names its model as only a profile does, or extends one.
bool is_profile(const Value& source);

/// Names that only a Python script's own configuration has (PEFT's and transformers' arguments), as a list; empty if there are none,
/// or a tool's own name of the model stands beside them.
std::string script_keys(const Value& source);

/// `lora-train merge ...` with what `source` names.
std::string merge_line(const Value& source);

/// Of a file that is another tool's, by most of its keys, and would not do as a profile: one sentence with the lines to run in its
/// place. nullopt: it is a profile, or is nearly one: one key of the tool is refused, or a key is nobody's, so misspelt.
std::optional<std::string> instead_of_file(const Value& source);

/// "lora-train convert FILE makes a profile ...", of a file that is another tool's, by most of its keys; nullopt: it is not.
std::optional<std::string> convert_hint(const Value& source);
std::string convert_hint_of(const std::string& file);

/// nullopt if no tool has the key, or lora-train has it itself. Where several tools have it, one that refuses the value decides.
/// May read what the value names (a DeepSpeed configuration, the tokenizer of the model).
std::optional<ForeignVerdict> judge_foreign_key(const std::string& name, const Value& value,
                                                const ForeignContext& context);

}  // namespace lora_train
