// Names that tools have for the formats of chats.
#pragma once

#include <string>

namespace lora_train {

/// What chat_template is here for Axolotl's or LLaMA-Factory's name of a format ("llama3", "qwen_25"): one of our built-in names, or empty.
std::string builtin_template(const std::string& theirs);

/// What ends a turn in one of our built-in templates: a token, or "eos_token" for that of the tokenizer; empty for other names.
std::string end_of_builtin(const std::string& ours);

/// LLaMA-Factory's `default`, `alpaca` and `mistral` as a Jinja template; empty for other names. Tools are not written. With `default_system`,
/// which chats without a system message get, `chatml`, `qwen` and `qwen3_nothink` too.
std::string written_template(const std::string& theirs, const std::string& default_system = {});

/// A text in quotes, as Jinja reads it.
std::string jinja_text(const std::string& text);

/// LLaMA-Factory's name of a format that models of this family bring in their own template ("granite3").
bool is_models_own_template(const std::string& theirs);

}  // namespace lora_train
