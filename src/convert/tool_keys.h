// The known keys of a tool. The tables are facts about its schema (scripts/foreign_keys.py lists that); values that
// need more than a table are converted by code.
#pragma once

#include <string>
#include <vector>

#include "lora_train/convert/convert.h"

namespace lora_train {

/// Why sharding is left out, and what the machine needs then.
inline constexpr const char* kNeverSharded =
    "the model is never sharded, so it must fit on one GPU (QLoRA: base_precision: nf4); several GPUs: --nproc N";

/// Keys whose values mean the same here.
struct SameValue {
  const char* name;
  const char* ours;
};

/// Keys without effect here.
struct IdleGroup {
  const char* reason;
  std::vector<const char*> names;
};

/// A key that is refused, unless its value matches what happens anyway: null, false, an empty text, list or map, or one
/// of `harmless` (in lower case).
struct RefusedKey {
  const char* name;
  std::vector<const char*> harmless = {};
};
struct RefusedGroup {
  const char* advice;  ///< what to do instead
  std::vector<RefusedKey> keys;
};

/// Details of a feature: they have no effect without the key that turns it on, which is refused.
struct OptionGroup {
  const char* of;  ///< the key that turns it on
  std::vector<const char*> names;
};

struct ToolKeys {
  std::vector<SameValue> same;
  std::vector<const char*> converted;  ///< by code
  std::vector<IdleGroup> idle;
  std::vector<RefusedGroup> refused;
  std::vector<OptionGroup> options;

  const SameValue* find_same(const std::string& name) const;
  /// nullptr, or the reason.
  const char* find_idle(const std::string& name) const;
  const RefusedKey* find_refused(const std::string& name, const char** advice) const;
  const char* find_option(const std::string& name) const;
  std::vector<std::string> all() const;
};

const ToolKeys& axolotl_keys();
const ToolKeys& llamafactory_keys();
const ToolKeys& trl_keys();
const ToolKeys& keys_of(ForeignTool tool);

/// transformers.TrainingArguments, which LLaMA-Factory and TRL extend.
ToolKeys trainer_keys();
/// The keys of `more` added to those of `base`; a key of `more` replaces that of `base`.
ToolKeys joined(ToolKeys base, const ToolKeys& more);

}  // namespace lora_train
