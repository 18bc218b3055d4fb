// What `generate` and `teach` share when they ask a model of this machine.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/config/sampling.h"
#include "lora_train/data/encode/prompts.h"
#include "open_model.h"
#include "output/generation_file.h"

namespace lora_train::cli {

/// How many tokens each answer may have: max_new_tokens, or what the context leaves; warns where that is less. Throws DataError for a
/// prompt that leaves none.
std::vector<std::int64_t> answer_lengths(const std::vector<data::Prompt>& prompts, std::int64_t max_new_tokens,
                                         std::int64_t context);

/// What the model decides of the answers; "model" comes first. `adapter` as it was given.
GenerationSettings model_settings(const ModelSection& section, const std::string& adapter, const ModelFolders& folders,
                                  bool is_raw);

/// What the sampling flags decide of them.
GenerationSettings sampling_settings(const SamplingOptions& sampling);

}  // namespace lora_train::cli
