// Prompts from rows: the chat of a row, and its text up to where the answer starts.
#pragma once

#include "lora_train/data/encode/prompts.h"
#include "read/row_format.h"

namespace lora_train::data {

/// "a part of messages[0].content (system)"
std::string describe(const tokenizer::Omission& omission, const std::vector<tokenizer::Message>& messages);

/// The list of messages in the field prompt of a row. Throws DataError (where empty) naming the field.
ChatSample chat_of_prompt(const Json& row, const FieldMap& map);

/// The chat of a row of training data: messages, conversations, or instruction with output. Throws DataError (where empty)
/// naming the keys found and those expected.
ChatSample chat_of_row(const Json& row);

/// The chat through the template, with what begins the assistant's turn. A system message of the options comes first.
/// Warns once of what the template leaves out. Throws FormatError without a template, DataError with --raw or with two
/// system messages, and what the template throws.
std::string render_chat_prompt(const ChatSample& chat, const PromptOptions& options);

/// Ids of a prompt, at least one; text that is not a chat gets BOS where the tokenizer adds one.
std::vector<std::int32_t> encode_prompt(const std::string& text, bool is_chat, const PromptOptions& options);

}  // namespace lora_train::data
