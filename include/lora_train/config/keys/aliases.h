// Names and values of other trainers, and their counterparts here. Tables only: a new name is a new line. Also hooks
// for what module convert says about other tools' keys and files: config may not depend on convert, so the program
// installs them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// The result of rewriting one entry.
struct Rewrite {
  std::vector<std::pair<std::string, Value>> entries;
  /// Entries that apply only if the same file does not set them itself (adapter: qlora implies nf4).
  std::vector<std::pair<std::string, Value>> implied;
  /// Removes an earlier layer's entry of that key if it has that value (load_in_4bit: false after true).
  std::vector<std::pair<std::string, std::string>> resets;
  std::string note;  ///< what was done; empty = none
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
/// Other spellings of a key's values: name == key. A rewrite without entries, note and error leaves the value alone.
const std::vector<Alias>& value_rules();

const Alias* find_alias(const std::string& name);
const Alias* find_value_rule(const std::string& key);

/// Entries of add_tokens for tokens that other tools add with normalized=False: Axolotl's `tokens`, LLaMA-Factory's
/// `add_special_tokens`.
Value verbatim_tokens(const Value& names);

/// Flags that ask for a kind of adapter (PEFT's use_dora, Axolotl's peft_use_dora), each with the kind's name: for
/// kinds that AdapterKind has (aliases of `adapter`), or for those that it lacks (refused).
std::vector<std::pair<std::string, std::string>> adapter_flags(bool is_built);

struct ForeignKey {
  std::string name;
  std::string reason;
  std::string harmless;    ///< a value (besides false and null) that matches what happens anyway
  bool is_switch = false;  ///< true | false: as a flag it needs no value
};

/// Keys of other trainers that are refused, with the reason and what to use instead; harmless values are only noted.
const std::vector<ForeignKey>& refused_keys();
/// Keys of other trainers without effect, because lora-train always works that way; noted.
const std::vector<ForeignKey>& idle_keys();

/// Alternative keys for the same thing: at most one of a group in a file, and a later layer's replaces
/// an earlier one's.
const std::vector<std::vector<std::string>>& alternative_groups();

/// Metric names of transformers, TRL and LLaMA-Factory, each with ours: "eval_mean_token_accuracy", token_accuracy.
const std::vector<std::pair<std::string, std::string>>& foreign_metrics();

/// Our name for their metric, in any case; empty for an unknown name.
std::string metric_from(const std::string& theirs);

struct ForeignVerdict {
  bool is_idle = false;  ///< it cannot change a result here
  std::string reason;    ///< why, or what to do instead
};

/// Values that some verdicts depend on: model, seed and epochs of the profile; empty = not set.
struct ForeignContext {
  std::string model, seed, epochs;
};

/// Functions of module convert. With these defaults, a profile knows no other tool.
struct OtherTools {
  /// nullopt if no tool has the key, or lora-train has it itself.
  std::optional<ForeignVerdict> (*judge_key)(const std::string& name, const Value& value,
                                             const ForeignContext& context) =
      [](const std::string&, const Value&, const ForeignContext&) -> std::optional<ForeignVerdict> { return {}; };
  /// One sentence with the commands to run instead, if the file is another tool's; nullopt for a profile.
  std::optional<std::string> (*instead_of_file)(const Value& source) = [](const Value&) -> std::optional<std::string> {
    return {};
  };
  /// "lora-train convert FILE makes a profile ...", if the file is another tool's; nullopt otherwise.
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
