// Calls of functions as LLaMA-Factory's ShareGPT rows hold them.
#pragma once

#include <string>

#include "json_rows.h"

namespace lora_train::data {

/// The value of a function_call turn, JSON {name, arguments} or a list of these, as an assistant message with an
/// empty content and tool_calls. Throws DataError naming `field` for other values.
Json function_call_message(const std::string& value, const std::string& field);

}  // namespace lora_train::data
