// Names that tools have for the formats of chats, and the tokens of a model that they depend on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lora_train/convert/convert.h"

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

/// The token of that name in tokenizer_config.json ("eos_token"); empty if there is no folder, or no such token in it.
std::string token_of_model(const std::filesystem::path& model, const std::string& name);

/// What a model's name says of its tokenizer, for families whose tokenizers always cut behind a line feed; nullopt for others.
std::optional<PromptTokens> tokens_by_name(const std::string& model);

}  // namespace lora_train
