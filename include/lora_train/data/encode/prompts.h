// Prompts from the command line and from files, through the chat template or unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::data {

struct PromptOptions {
  const tokenizer::Tokenizer* tokenizer = nullptr;         ///< never null
  const tokenizer::ChatTemplate* chat_template = nullptr;  ///< null: the folder has none
  bool raw = false;                                        ///< text unchanged (with BOS if the tokenizer adds one)
  std::string system;  ///< comes before chats that have no system message; "" = none
};

struct Prompt {
  std::string source;  ///< "prompts.jsonl:3", "--prompt"
  std::string given;   ///< JSON in one line: the text, or the messages that were asked
  std::vector<std::int32_t> ids;
};

/// A text as the user's turn of a chat, or raw. Throws FormatError if there is no chat template (naming --raw), DataError
/// (where = source) for a text without tokens and for what the template refuses.
Prompt make_prompt(const std::string& text, const std::string& source, const PromptOptions& options);

/// The turns of a chat, the last of them not the assistant's, through the chat template. Throws as the other.
Prompt make_prompt(std::vector<tokenizer::Message> messages, const std::string& source, const PromptOptions& options);

/// One row, as read_prompts reads those of a file: a JSON object in one text. Throws as the others.
Prompt make_prompt_of_row(const std::string& row_json, const std::string& source, const PromptOptions& options);

/// Every row of a file, in its order: {"prompt": text or messages}, or a row of training data that holds a chat
/// (messages, conversations, instruction), whose last assistant turn is left out. Other fields of a row are not read,
/// except tools and chat_template_kwargs. Throws as make_prompt, where = file:line, and DataError for malformed rows and for
/// a file without any.
std::vector<Prompt> read_prompts(const std::string& file, const PromptOptions& options);

/// A question for another model, which has its own chat template.
struct ChatQuestion {
  std::string source;    ///< "prompts.jsonl:3"
  std::string messages;  ///< JSON array; the last message is not the assistant's
  std::string tools;     ///< JSON array; empty = none
};

/// Every row of a file as read_prompts reads it, besides lines of a .txt file: each is a user's message. `row_template` (may be
/// empty) is a Jinja template over the fields of a row, whose text is the user's message. Throws as read_prompts.
std::vector<ChatQuestion> read_questions(const std::string& file, const std::string& row_template);

/// The question through the chat template. Throws as the others.
Prompt make_prompt(const ChatQuestion& question, const PromptOptions& options);

}  // namespace lora_train::data
