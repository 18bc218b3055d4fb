// A conversation of a person or a script with a model: reads messages and commands, shows answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dialogue.h"
#include "line_reader.h"
#include "lora_train/evaluate/generation.h"
#include "output/answers.h"

namespace lora_train::cli {

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
