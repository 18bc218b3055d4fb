// When a run saves, evaluates, reports and resumes, and all that transformers' Trainer is told.
#pragma once

#include <string>

#include "converter.h"

namespace lora_train {

/// The checkpoints that transformers' Trainer saves: save_strategy and save_steps, 500 by default.
void convert_saving(Converter& converter, bool has_evaluation_data);
/// The same for evaluation, which is off by default; every `logging_steps` if only "steps" is said. Without evaluation data it has no effect.
void convert_evaluation(Converter& converter, int logging_steps, bool has_data);
/// metric_for_best_model, load_best_model_at_end, early stopping under `patience_key`, which need evaluation data.
void convert_best_model(Converter& converter, const std::string& patience_key, bool has_data);

/// Stands behind save_strategy: no.
inline constexpr const char* kLastIsSaved = "the last step is saved, so that the run can be resumed with more steps";

/// What is held out for evaluation, as a share or as rows, under `key`.
void convert_held_out(Converter& converter, const std::string& key);

/// save_strategy: best, under `key`: the best step is what is kept, so `has_data` decides.
void convert_best_saves(Converter& converter, const std::string& key, bool has_data);

void convert_reporting(Converter& converter);
void convert_resuming(Converter& converter);

/// Keys and defaults of transformers.TrainingArguments that LLaMA-Factory and TRL have in common.
void convert_trainer(Converter& converter, double learning_rate, int logging_steps, bool has_evaluation_data);

}  // namespace lora_train
