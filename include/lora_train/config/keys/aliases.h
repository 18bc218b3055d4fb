// Names and values of other trainers, and what they become here. Tables only: a new name is a new line.
#pragma once

#include <functional>
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

}  // namespace lora_train
