// The checks of a whole profile: itself, and what it names. What `check` says, `train` refuses.
#pragma once

#include "lora_train/config/load.h"

namespace lora_train::cli {

struct InputCheck {
  bool reads_all =
      false;  ///< the tokenizer, the headers of the weights and the first rows too, which a run reads anyway
  /// A profile of ours, meant for other machines: a model that is not in the cache and rows of eval_tasks that are not there are only
  /// warned of.
  bool is_shipped = false;
  bool is_usage =
      false;  ///< what is wrong outside the model's folder is a mistake of the profile, whatever a run would end with
};

/// Adds what a run would refuse of the model's folder, datasets, chat template, init_adapter and resume_from_checkpoint, and where
/// the profile contradicts the model. Keys that are wrong already are left out. Needs no GPU.
void check_inputs(const LoadedProfile& loaded, const InputCheck& what, Findings& findings);

/// The part of it that looks at no file: names of tasks and data sets, and metric_for_best_model.
void check_without_files(const LoadedProfile& loaded, Findings& findings);

}  // namespace lora_train::cli
