// The prompts of `distill`: which are trained on, and which are held out to compare the student with its teacher.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/load.h"
#include "lora_train/data/encode/prompts.h"

namespace lora_train::cli {

struct PromptSets {
  std::vector<data::ChatQuestion> training;
  std::vector<data::ChatQuestion> held_out;  ///< may be empty
};

/// Adds what datasets and eval_datasets say that only rows with answers have: type, field_map, weight.
void check_prompt_specs(const LoadedProfile& loaded, Findings& findings);

/// The rows of datasets, as data::read_questions reads them. Held out are those of eval_datasets, or a part of datasets that
/// val_set_size names: chosen by the text of the prompt and the seed, so that equal prompts stay together. Throws as reading does,
/// and ConfigError where val_set_size leaves nothing to train on.
PromptSets read_prompt_sets(const Profile& profile, const std::string& row_template);

}  // namespace lora_train::cli
