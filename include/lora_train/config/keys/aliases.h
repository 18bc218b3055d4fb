// Names and values of other trainers, and what they become here. Tables only: a new name is a new line. Also what module convert
// says of the keys and files of other tools: config lies below it, so the program introduces them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// What one given entry becomes.
struct Rewrite {
  std::vector<std::pair<std::string, Value>> entries;
  /// Entries that hold only when the same file says nothing about them itself (adapter: qlora implies nf4).
  std::vector<std::pair<std::string, Value>> implied;
  /// Takes back an earlier layer's entry of that key when it has that value (load_in_4bit: false after true).
  std::vector<std::pair<std::string, std::string>> resets;
  std::string note;  ///< what was done; empty = nothing to say
  std::string warning;
  std::string error;
};

struct Alias {
  std::string name;
  std::string key;      ///< the key it stands for
  std::string meaning;  ///< for the documentation; empty = the same values
  std::function<Rewrite(const Value&)> rewrite;
};

/// Other names of keys.
const std::vector<Alias>& aliases();
/// Other spellings of values of a key: name == key. A rewrite without entries, note and error leaves the value alone.
const std::vector<Alias>& value_rules();

const Alias* find_alias(const std::string& name);
const Alias* find_value_rule(const std::string& key);

/// Entries of add_tokens for tokens that other tools add with normalized=False: Axolotl's `tokens`, LLaMA-Factory's
/// `add_special_tokens`.
Value verbatim_tokens(const Value& names);

/// Flags that ask for a kind of adapter (PEFT's use_dora, Axolotl's peft_use_dora), each with the kind's name: of kinds that
/// AdapterKind has (aliases of `adapter`), or of those that it lacks (refused).
std::vector<std::pair<std::string, std::string>> adapter_flags(bool is_built);

struct ForeignKey {
  std::string name;
  std::string reason;
  std::string harmless;    ///< a value (besides false and null) that asks for what is done anyway
  bool is_switch = false;  ///< true | false: as a flag it needs no value
};

/// Keys of other trainers that are refused, with the reason and what to use instead; harmless values are only noted.
const std::vector<ForeignKey>& refused_keys();
/// Keys of other trainers without effect, because it is always so; noted.
const std::vector<ForeignKey>& idle_keys();

/// Alternative keys for the same thing: at most one of a group in a file, and a later layer's replaces
/// an earlier one's.
const std::vector<std::vector<std::string>>& alternative_groups();

/// Names of transformers, TRL and LLaMA-Factory, each with ours: "eval_mean_token_accuracy", token_accuracy.
const std::vector<std::pair<std::string, std::string>>& foreign_metrics();

/// Our name for theirs, in any case; empty if nobody calls a metric so.
std::string metric_from(const std::string& theirs);

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
