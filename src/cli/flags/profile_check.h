// Checks a whole profile: itself, and the files that it names. `train` refuses what `check` reports.
#pragma once

#include "lora_train/config/load.h"

namespace lora_train::cli {

struct InputCheck {
  bool reads_all =
      false;  ///< also check the tokenizer, the headers of the weights and the first examples, which a run reads anyway
  /// Our own profile, for other machines: only warns about a model that is not in the cache and about missing examples
  /// of eval_tasks.
  bool is_shipped = false;
  bool is_usage =
      false;  ///< report mistakes outside the model's folder as mistakes of the profile, whatever a run would end with
};

/// Adds what a run would refuse in the model's folder, datasets, chat template, init_adapter and
/// resume_from_checkpoint, and contradictions between profile and model. Skips keys that are wrong already. Needs no
/// GPU.
void check_inputs(const LoadedProfile& loaded, const InputCheck& what, Findings& findings);

/// The part that needs no file: names of tasks and datasets, and metric_for_best_model.
void check_without_files(const LoadedProfile& loaded, Findings& findings);

}  // namespace lora_train::cli
