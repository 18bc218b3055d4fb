// Finds what a template left out of a chat.
#pragma once

#include <vector>

#include "jinja/evaluator.h"
#include "lora_train/tokenizer/chat_template.h"

namespace lora_train::tokenizer {

/// By message. `variables` hold the messages that were rendered to `text`.
std::vector<Omission> find_omissions(const jinja::Dict& variables, const jinja::Text& text);

}  // namespace lora_train::tokenizer
