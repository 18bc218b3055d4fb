// What a profile says about names of other programs, besides the other names of its keys (field.h).
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// Entries of add_tokens for tokens that other tools add with normalized=False: Axolotl's `tokens`, LLaMA-Factory's
/// `add_special_tokens`.
Value verbatim_tokens(const Value& names);

/// A name that is refused with what to use instead.
struct RefusedName {
  std::string name;
  std::string reason;
  std::string harmless;    ///< a value (besides false and null) that matches what happens anyway
  bool is_switch = false;  ///< true | false: as a flag it needs no value
};
const std::vector<RefusedName>& refused_names();

/// Alternative keys for the same thing: at most one of a group in a file, and a later layer's replaces
/// an earlier one's.
const std::vector<std::vector<std::string>>& alternative_groups();

/// Our name for a metric of transformers, TRL and LLaMA-Factory, in any case: "eval_mean_token_accuracy" is
/// token_accuracy. Empty for an unknown name.
std::string metric_from(const std::string& theirs);

}  // namespace lora_train
