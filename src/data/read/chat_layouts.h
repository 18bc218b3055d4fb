// Layouts that hold conversations. Each throws DataError (where empty) as parse_row does.
#pragma once

#include "row_format.h"

namespace lora_train::data {

/// messages: [{role, content, ...}]; tools; chat_template_kwargs. Roles: system, user, assistant, tool. The template gets
/// each message as the row has it; train and weight also say what its tokens count for (row_fields.h). `field` may
/// be another one that holds such a list.
Sample parse_messages(const Json& row, const FieldMap& map, const char* field);
inline Sample parse_messages(const Json& row, const FieldMap& map) { return parse_messages(row, map, "messages"); }

/// prompt and completion as lists of messages.
Sample parse_prompt_completion_chat(const Json& row, const FieldMap& map);

/// conversations: [{from, value}] with human, gpt, function_call, observation and system (or our roles), train and weight
/// as above; a `system` column comes first.
Sample parse_sharegpt(const Json& row, const FieldMap& map);

/// instruction, input, output, system, history [[user, assistant], ...] as chat turns: user = instruction LF input, which a template
/// gets as `input` too, so that it can put its own text between them.
Sample parse_alpaca(const Json& row, const FieldMap& map);
/// Whether `message`, as a template gets it, has that `input`, which is no part of the message itself.
bool has_alpaca_input(const Json& message);

}  // namespace lora_train::data
