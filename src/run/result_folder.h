// The result of a run: adapter/ (a PEFT folder with tokenizer files and model card) or model/ (a Hugging Face folder).
#pragma once

#include "lora_train/report/summary.h"
#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// Writes the last step, or with load_best_model_at_end the best one, from its checkpoint, and names both in `summary`.
/// The folder gets a temporary name and is then renamed, replacing an older one; files that others put there move to
/// the new one. generation_config.json lists the token that ends a trained answer before the model's end tokens. Reads
/// new tokens and their rows back and compares them. Throws IoError, NumericError if a value is not finite, and
/// FormatError if that comparison fails or the best checkpoint is damaged.
void write_result(const Run& run, report::RunSummary& summary);

}  // namespace lora_train::run
