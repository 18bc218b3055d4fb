// A conversation of a person or a script with a model: reads messages and commands, shows answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "line_reader.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/generate/prompt.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "output/answers.h"

namespace lora_train::cli {

/// The turns of a conversation, and the prompts they make.
class Dialogue {
 public:
  /// `context`: tokens available to a prompt and its answer. tokenizer and template must outlive the dialogue. Without
  /// a template, each question stands for itself, and is passed unchanged.
  Dialogue(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate* chat_template, std::int64_t context)
      : tokenizer_(tokenizer), template_(chat_template), context_(context) {}

  /// Adds a question, and renders all turns through the template. `source` is for messages. Throws DataError, leaving
  /// the dialogue unchanged, if the template refuses it or the context leaves no room for an answer.
  data::Prompt ask(const std::string& text, const std::string& source);

  /// Records the answer to the last question. An empty one takes the question back.
  void answer(const std::string& text);

  /// Throws, leaving the message unchanged, if the template takes no system message. "" removes it.
  void set_system(const std::string& text, const std::string& source);

  /// Forgets all turns; the system message stays.
  void reset() { turns_.clear(); }

  /// Tokens that the context leaves for an answer.
  std::int64_t room(const data::Prompt& prompt) const { return context_ - std::ssize(prompt.ids); }
  std::int64_t context() const { return context_; }
  /// Number of questions with their answers.
  std::size_t num_turns() const { return turns_.size() / 2; }

 private:
  data::Prompt render(const std::string& source) const;

  const tokenizer::Tokenizer& tokenizer_;
  const tokenizer::ChatTemplate* template_;  ///< null: raw
  std::int64_t context_;
  std::string system_;
  std::vector<tokenizer::Message> turns_;  ///< user, assistant, user, ...
};

struct ChatLine {
  enum class Kind { kMessage, kHelp, kReset, kAdapter, kSystem, kExit };
  Kind kind = Kind::kMessage;
  std::string text = {};  ///< the message, or the text after the command, trimmed
};

/// Parses a line. A leading "/" makes it a command; one space before the "/" makes it a message, and is dropped. Throws
/// ConfigError (where = the command) for an unknown command, or for one with words that it does not take.
ChatLine parse_chat_line(const std::string& line);

/// The text of /help.
std::string chat_help();

struct ChatOptions {
  AnswerOptions answers;  ///< when to end an answer
  SamplingOptions sampling = {};
  std::int64_t max_new_tokens = 0;  ///< per answer; fewer if the context leaves less
  bool has_adapter = false;         ///< the adapter answers until /adapter off
  bool json = false;                ///< print answers as lines of answer_to_json, once complete
  std::string greeting = {};        ///< shown to a person once the weights are loaded
};

/// Answers go to stdout token by token, and everything else to stderr. A person's mistake is shown, and the
/// conversation goes on; a script's is thrown, with stdin:line. In a person's conversation, SIGINT ends the answer, and
/// the text so far stays in the dialogue; any other stop request (base/stop_request.h) ends the conversation.
class ChatSession : public generate::PromptQueue {
 public:
  /// All must outlive the session.
  ChatSession(LineReader& reader, Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer, ChatOptions options);

  void on_start(std::int64_t max_tokens) override;
  std::optional<generate::Prompt> next(bool may_wait) override;
  bool on_token(std::int64_t id, const generate::Token& token) override;
  void on_done(std::int64_t id, bool is_cut) override;
  void on_stop() override;

 private:
  std::optional<std::string> read_message();
  generate::Prompt ask(const std::string& text);
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
  long long line_ = 0;          ///< input line, from 1
  std::int64_t num_asked_ = 0;  ///< the index of the next prompt: a repeated question gets other draws
  data::Prompt prompt_;         ///< being answered
  std::optional<AnswerCollector> collector_;
};

}  // namespace lora_train::cli
