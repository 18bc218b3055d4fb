// Converts what the three tools share: keys of a run, optimizers, schedules, cadences, precision and targets have the
// same values under similar names.
#pragma once

#include <string>

#include "converter.h"

namespace lora_train {

/// The lowest rate of the schedule under `key`: lr_scheduler_kwargs and Axolotl's cosine_min_lr_ratio.
void convert_schedule(Converter& converter, const std::string& key);

/// warmup_steps and warmup_ratio; a number below 1 in warmup_steps is a share.
void convert_warmup(Converter& converter);

/// max_steps; -1 is none.
void convert_max_steps(Converter& converter);

/// bf16 and bfloat16. A run in fp16, which is refused, has no other precision.
void convert_precision(Converter& converter);

/// The key that quantises the base, once it is decided whether there is an adapter.
void convert_quantization(Converter& converter, const std::string& key);

/// Module names, "all-linear" or a regex under `key`.
void convert_targets(Converter& converter, const std::string& key);

/// Of a key of the adapter's shape.
inline constexpr const char* kBringsShape = "the adapter that the run starts from brings its own";

/// deepspeed: a map, or a file next to the configuration or in the working directory. Sharding changes no numbers; its
/// own optimizer, schedule or clipping does.
void convert_deepspeed(Converter& converter);

/// `name`, at `revision` unless that is main or empty: org/name@revision.
void convert_model(Converter& converter, const std::string& key, const std::string& revision_key);

/// The checkpoints that transformers' Trainer saves: save_strategy and save_steps, 500 by default.
void convert_saving(Converter& converter, bool has_evaluation_data);
/// The same for evaluation, which is off by default; every `logging_steps` if only "steps" is set. Without evaluation
/// data it has no effect.
void convert_evaluation(Converter& converter, int logging_steps, bool has_data);
/// metric_for_best_model, load_best_model_at_end, early stopping under `patience_key`, which need evaluation data.
void convert_best_model(Converter& converter, const std::string& patience_key, bool has_data);

/// Follows `save_strategy: no`.
inline constexpr const char* kLastIsSaved = "the last step is saved, so that the run can be resumed with more steps";

/// The entries of add_tokens, from `key`; full fine-tuning takes none.
void convert_new_tokens(Converter& converter, const std::string& key, const Value& tokens);

/// The data held out for evaluation, as a share or as examples, under `key`.
void convert_held_out(Converter& converter, const std::string& key);

/// save_strategy: best, under `key`: keeps the best step, so `has_data` decides.
void convert_best_saves(Converter& converter, const std::string& key, bool has_data);

void convert_reporting(Converter& converter);

/// Keys and defaults of transformers.TrainingArguments that LLaMA-Factory and TRL have in common.
void convert_trainer(Converter& converter, int logging_steps, bool has_evaluation_data);

}  // namespace lora_train
