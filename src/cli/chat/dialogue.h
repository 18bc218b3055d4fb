// The lines of a chat: its commands, the turns of the conversation, and the prompts they make.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/data/encode/prompts.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::cli {

class Dialogue {
 public:
  /// `context`: tokens that a prompt and its answer may have. tokenizer and template must outlive the dialogue.
  Dialogue(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat_template, std::int64_t context)
      : tokenizer_(tokenizer), template_(chat_template), context_(context) {}

  /// Adds a question, and renders all turns through the template. `source` is for messages. Throws DataError, with the dialogue as
  /// it was, if the template refuses it or the context leaves no room for an answer.
  data::Prompt ask(const std::string& text, const std::string& source);

  /// The answer to the last question. An empty one takes the question back.
  void answer(const std::string& text);

  /// Throws, with the message as it was, if the template takes no system message. "" removes it.
  void set_system(const std::string& text, const std::string& source);

  /// Forgets all turns; the system message stays.
  void reset() { turns_.clear(); }

  /// Tokens that the context leaves for an answer.
  std::int64_t room(const data::Prompt& prompt) const { return context_ - std::ssize(prompt.ids); }
  std::int64_t context() const { return context_; }
  const std::string& system() const { return system_; }
  /// Questions with their answers.
  std::size_t num_turns() const { return turns_.size() / 2; }

 private:
  data::Prompt render(const std::string& source) const;

  const tokenizer::Tokenizer& tokenizer_;
  const tokenizer::ChatTemplate& template_;
  std::int64_t context_;
  std::string system_;
  std::vector<tokenizer::Message> turns_;  ///< user, assistant, user, ...
};

struct ChatLine {
  enum class Kind { kMessage, kHelp, kReset, kAdapter, kSystem, kExit };
  Kind kind = Kind::kMessage;
  std::string text = {};  ///< the message, or what follows the command, without the space around it
};

/// A line that begins with "/" is a command; one space before the "/" makes it a message, and is not part of it. Throws
/// ConfigError (where = the command) for an unknown command, and for one with words that it does not take.
ChatLine parse_chat_line(const std::string& line);

/// What /help prints.
std::string chat_help();

}  // namespace lora_train::cli
