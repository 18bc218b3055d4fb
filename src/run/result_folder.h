// The result of a run: adapter/ (a PEFT folder with tokenizer files and model card) or model/ (a Hugging Face folder).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lora_train/config/keys/profile.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/run_folder/checkpoint.h"

namespace lora_train::run {

/// Writes the folder under a temporary name and renames it, replacing an older one; files that others put there move to
/// the new one. `end_of_turn` is the token that ends a trained answer, if any: generation_config.json lists it as an
/// end token, before those of the model. Reads new tokens and their rows back and compares them. Returns the folder's
/// path. Throws IoError, NumericError if a value is not finite, and FormatError if that comparison fails.
std::filesystem::path write_result(const RunSection& section, const plan::ModelFiles& files,
                                   const plan::AdapterSetup& adapters, const model::Trainables& parameters,
                                   const run_folder::TrainState& state, std::optional<std::int32_t> end_of_turn);

}  // namespace lora_train::run
