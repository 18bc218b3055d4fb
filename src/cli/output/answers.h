// Assembles answers from the tokens that the engine generates.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/evaluate/generate_request.h"
#include "lora_train/tokenizer/text_stream.h"

namespace lora_train::cli {

struct Answer {
  std::vector<std::int32_t> ids;  ///< the stop token included
  std::string text;               ///< without special tokens, up to the stop token or stop string
  bool is_cut = false;            ///< max_new_tokens or the context ended it
};

struct Answers {
  Answer answer;               ///< of the adapter, or of the base if there is no adapter
  std::optional<Answer> base;  ///< with --compare
};

struct AnswerOptions {
  std::vector<std::int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  bool compare = false;
};

class AnswerCollector : public evaluate::GenerateSink {
 public:
  struct Callbacks {
    std::function<void()> on_start = {};
    std::function<void(std::string_view)> on_text = {};  ///< pieces of answers that may be shown; of one prompt only
    std::function<void()> on_token = {};
    std::function<void(std::size_t prompt, const Answers&)> on_answers = {};  ///< all answers of a prompt are there
  };

  AnswerCollector(const tokenizer::Tokenizer& tokenizer, AnswerOptions options, Callbacks callbacks);

  void on_start() override;
  bool on_token(std::size_t prompt, bool is_base, std::int32_t id) override;
  void on_done(std::size_t prompt, bool is_base, bool is_cut) override;

 private:
  struct Active {
    Active(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& stop_strings)
        : stream(tokenizer), stops(stop_strings) {}
    std::vector<std::int32_t> ids;
    std::string text;
    tokenizer::TextStream stream;
    tokenizer::StopStrings stops;
  };
  bool is_stop_id(std::int32_t id) const;
  void add_text(Active& active, const std::string& piece);
  Answer finish(Active& active, bool is_cut);

  const tokenizer::Tokenizer& tokenizer_;
  AnswerOptions options_;
  Callbacks callbacks_;
  std::map<std::pair<std::size_t, bool>, Active> active_;
  std::map<std::size_t, Answer> waiting_;  ///< answers of the base, for those of the adapter
};

}  // namespace lora_train::cli
