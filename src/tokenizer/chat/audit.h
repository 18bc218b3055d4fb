// Finds what a template left out of a chat.
#pragma once

#include <vector>

#include "jinja/evaluator.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::tokenizer {

/// By message, tools last. `variables` hold the messages and tools that were rendered to `text`.
std::vector<Omission> find_omissions(const jinja::Dict& variables, const jinja::Text& text);

}  // namespace lora_train::tokenizer
