// Names that tools have for the formats of chats.
#pragma once

#include <string>

namespace lora_train {

/// What chat_template is here for Axolotl's or LLaMA-Factory's name of a format ("llama3", "qwen_25"): one of our built-in names, or empty.
std::string builtin_template(const std::string& theirs);

/// LLaMA-Factory's `default` and `alpaca` as a Jinja template; empty for other names. Tools are not written.
std::string written_template(const std::string& theirs);

/// LLaMA-Factory's name of a format that models of this family bring in their own template ("granite3").
bool is_models_own_template(const std::string& theirs);

}  // namespace lora_train
