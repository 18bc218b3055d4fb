// What convert asks of a model's tokenizer.
#pragma once

#include <optional>
#include <string>

#include "lora_train/convert/convert.h"

namespace lora_train::cli {

/// `model` is a folder or a model in the local Hugging Face cache; nullopt if it is not there, or its tokenizer cannot be read.
std::optional<PromptTokens> find_prompt_tokens(const std::string& model);

}  // namespace lora_train::cli
