// Prompts from the command line and from files, through the chat template or unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::data {

struct PromptOptions {
  const tokenizer::Tokenizer* tokenizer = nullptr;         ///< never null
  const tokenizer::ChatTemplate* chat_template = nullptr;  ///< null: the folder has no template
  bool raw = false;                                        ///< text unchanged (with BOS if the tokenizer adds one)
  std::string system;                                      ///< system message for chats without one; "" = none
  Thinking thinking = Thinking::kTemplate;                 ///< of earlier turns, as in training
};

struct Prompt {
  std::string source;  ///< "prompts.jsonl:3", "--prompt"
  std::string given;   ///< one-line JSON: the text, or the messages asked
  std::vector<std::int32_t> ids;
};

/// Makes a prompt from a text, as the user's turn of a chat or raw. Throws FormatError if there is no chat template
/// (naming --raw), DataError (where = source) for a text without tokens or a chat that the template refuses.
Prompt make_prompt(const std::string& text, const std::string& source, const PromptOptions& options);

/// Puts the turns of a chat through the chat template; the last turn must not be the assistant's. Throws as above.
Prompt make_prompt(std::vector<tokenizer::Message> messages, const std::string& source, const PromptOptions& options);

/// Makes a prompt from one example, a JSON object in read_prompts()'s format. Throws as above.
Prompt make_prompt_of_example(const std::string& example_json, const std::string& source, const PromptOptions& options);

/// Reads every example of a file, in order: {"prompt": text or messages}, or a training example with a chat (messages,
/// conversations, instruction), whose last assistant turn is left out; in a .txt file, every line is a text. Ignores
/// other fields, except tools and chat_template_kwargs. Throws as make_prompt, where = file:line, and DataError for
/// malformed examples or a file without examples.
std::vector<Prompt> read_prompts(const std::string& file, const PromptOptions& options);

/// A question for another model, which has its own chat template.
struct ChatQuestion {
  std::string source;    ///< "prompts.jsonl:3"
  std::string messages;  ///< JSON array; the last message is not the assistant's
  std::string tools;     ///< JSON array; empty = none
};

/// Reads every example of a file as read_prompts does, and also .txt files, where each line is a user message.
/// `prompt_template` (may be empty) is a Jinja template over the fields of an example that renders the user message.
/// Throws as read_prompts.
std::vector<ChatQuestion> read_questions(const std::string& file, const std::string& prompt_template);

/// Puts the question through the chat template. Throws as above.
Prompt make_prompt(const ChatQuestion& question, const PromptOptions& options);

}  // namespace lora_train::data
