// Layouts that hold conversations. Each throws DataError (where empty) as parse_row does.
#pragma once

#include "row_format.h"

namespace lora_train::data {

/// messages: [{role, content, ...}]; tools; chat_template_kwargs. Roles: system, user, assistant, tool. Other fields of
/// a message reach the template.
Sample parse_messages(const Json& row, const FieldMap& map);

/// prompt and completion as lists of messages.
Sample parse_prompt_completion_chat(const Json& row, const FieldMap& map);

/// conversations: [{from, value}] with human, gpt and system (or our roles); a `system` column comes first.
Sample parse_sharegpt(const Json& row, const FieldMap& map);

/// instruction, input, output, system, history [[user, assistant], ...] as chat turns: user = instruction LF input.
Sample parse_alpaca(const Json& row, const FieldMap& map);

}  // namespace lora_train::data
