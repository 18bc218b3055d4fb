// Calls of functions as LLaMA-Factory's ShareGPT rows hold them.
#pragma once

#include <string>

#include "lora_train/tokenizer/chat_template.h"

namespace lora_train::data {

/// The value of a function_call turn, JSON {name, arguments} or a list of these, as an assistant message with
/// tool_calls and an empty content. Throws DataError naming `field` for other values.
tokenizer::Message function_call_message(const std::string& value, const std::string& field);

}  // namespace lora_train::data
