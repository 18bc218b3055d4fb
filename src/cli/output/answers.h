// Assembles answers from the tokens that the engine generates, and prints them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/data/encode/prompts.h"
#include "lora_train/generate/prompt.h"
#include "lora_train/serve/answer.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::cli {

struct Answer {
  std::vector<std::int32_t> ids;  ///< the stop token included
  std::string text;               ///< without special tokens, up to the stop token or stop string
  bool is_cut = false;            ///< ended by max_new_tokens or the context
};

struct Answers {
  Answer answer;               ///< from the adapter, or from the base if there is no adapter
  std::optional<Answer> base;  ///< with --compare
};

struct AnswerOptions {
  std::vector<std::int32_t> stop_ids;
  std::vector<std::string> stop_strings;
};

/// The answer to prompt i has the id i. That of the base, if there is one to compare, has the id ~i and comes first.
class AnswerCollector : public generate::AnswerSink {
 public:
  struct Callbacks {
    std::function<void()> on_start = {};
    std::function<void(std::string_view)> on_text = {};  ///< printable pieces of answers; for one prompt only
    std::function<void()> on_token = {};
    std::function<void(std::size_t prompt, const Answers&)> on_answers = {};  ///< a prompt has all its answers
  };

  AnswerCollector(const tokenizer::Tokenizer& tokenizer, AnswerOptions options, Callbacks callbacks);

  void on_start(std::int64_t max_tokens) override;
  bool on_token(std::int64_t id, const generate::Token& token) override;
  void on_done(std::int64_t id, bool is_cut) override;

 private:
  struct Active {
    std::vector<std::int32_t> ids;
    serve::AnswerText text;
  };
  Active& active(std::int64_t id);
  bool is_stop_id(std::int32_t id) const;
  void show(const std::string& piece) const;
  Answer finish(Active& active, bool is_cut) const;

  const tokenizer::Tokenizer& tokenizer_;
  AnswerOptions options_;
  Callbacks callbacks_;
  const bool reads_text_;  ///< as it comes, not only at the end
  std::map<std::int64_t, Active> active_;
  std::map<std::size_t, Answer> waiting_;  ///< the base's answers, until the adapter's arrive
};

/// Formats both texts under their headings, wrapped at words (at any character if a word is too long), in columns that
/// together are at most `width` wide; one below the other if that leaves less than 20 columns each. Ends with a line
/// end. Wide characters count as two columns. Shows both texts through visible_text.
std::string side_by_side(std::string_view left_head, std::string_view left, std::string_view right_head,
                         std::string_view right, int width);

/// "40 prompt tokens in 0.52 s (76.9 tok/s); 30 new tokens; decoding, without the first of each answer: ..."
std::string describe(const generate::Totals& totals);

/// Calls `answer` and logs its totals, or that a signal stopped it.
void log_totals(const std::function<generate::Totals()>& answer);

/// One line of JSON: index, prompt, completion, completion_ids, finish_reason, and with a base its own three.
std::string answer_to_json(const data::Prompt& prompt, std::size_t index, const Answers& answers);

/// Prints answers to stdout in the order of the prompts, whatever order they arrive in.
class AnswerPrinter {
 public:
  /// json: lines of answer_to_json; otherwise text, under its prompt if there are several, in two columns if there is a
  /// base.
  AnswerPrinter(const std::vector<data::Prompt>& prompts, bool json) : prompts_(prompts), json_(json) {}

  void add(std::size_t index, const Answers& answers);
  /// Prints the answers that waited for earlier ones; call it when no more will arrive.
  void finish();

 private:
  std::string text_of(std::size_t index, const Answers& answers) const;

  const std::vector<data::Prompt>& prompts_;
  bool json_;
  std::map<std::size_t, std::string> waiting_;
  std::size_t num_shown_ = 0;
};

}  // namespace lora_train::cli
