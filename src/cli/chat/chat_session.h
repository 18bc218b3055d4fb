// A conversation of a person or a script with a model: reads messages and commands, shows answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "line_reader.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/evaluate/generation.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "output/answers.h"

namespace lora_train::cli {

/// The turns of a conversation, and the prompts they make.
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

struct ChatOptions {
  AnswerOptions answers;            ///< what ends an answer
  std::int64_t max_new_tokens = 0;  ///< per answer; fewer where the context leaves less
  bool has_adapter = false;         ///< it answers until /adapter off
  bool json = false;                ///< answers as lines of answer_to_json, as soon as they are whole
  std::string greeting = {};        ///< for a person, once the weights are loaded
};

/// Answers go to stdout token by token, and everything else to stderr. With a person, a mistake is shown and the conversation goes
/// on; in a script it is thrown, with stdin:line. A SIGINT ends the answer of a person's conversation, and what was written of it
/// stays in the dialogue; any other request to stop (base/stop_request.h) ends the conversation.
class ChatSession : public evaluate::Conversation {
 public:
  /// All must outlive the session.
  ChatSession(LineReader& reader, Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer, ChatOptions options);

  void on_start() override;
  std::optional<evaluate::ConversationTurn> next_turn() override;
  bool on_token(std::size_t prompt, bool is_base, std::int32_t id) override;
  void on_done(std::size_t prompt, bool is_base, bool is_cut) override;
  void on_stop() override;

 private:
  std::optional<std::string> read_message();
  std::optional<evaluate::ConversationTurn> ask(const std::string& text);
  void run_command(const ChatLine& line);
  void run_adapter(const std::string& word);
  void run_system(const std::string& text);
  void take_answer(const Answers& answers);
  void note(const std::string& text) const;
  std::string place() const;

  LineReader& reader_;
  Dialogue& dialogue_;
  const tokenizer::Tokenizer& tokenizer_;
  ChatOptions options_;
  bool uses_adapter_;
  long long line_ = 0;          ///< of the input, from 1
  std::int64_t num_asked_ = 0;  ///< the index of the next prompt: draws differ where a question is asked again
  data::Prompt prompt_;         ///< that is being answered
  std::optional<AnswerCollector> collector_;
};

}  // namespace lora_train::cli
