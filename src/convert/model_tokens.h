// What a model folder on this machine says of its special tokens.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lora_train/convert/convert.h"

namespace lora_train {

/// The token of that name in tokenizer_config.json ("eos_token"); empty if there is no folder, or no such token in it.
std::string token_of_model(const std::filesystem::path& model, const std::string& name);

/// What a model's name says of its tokenizer, for families whose tokenizers always cut behind a line feed; nullopt for others.
std::optional<PromptTokens> tokens_by_name(const std::string& model);

}  // namespace lora_train
