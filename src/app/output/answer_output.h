// Answers on stdout and in files.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "answers.h"
#include "lora_train/data/prompts.h"

namespace lora_train::app {

/// One line of JSON: index, prompt, completion, completion_ids, finish_reason, and with a base its own three.
std::string answer_to_json(const data::Prompt& prompt, std::size_t index, const Answers& answers);

/// Shows answers on stdout in the order of the prompts, whatever order they come in.
class AnswerPrinter {
 public:
  /// json: lines of answer_to_json; else text, under its prompt where there are several, in two columns where there is a base.
  AnswerPrinter(const std::vector<data::Prompt>& prompts, bool json) : prompts_(prompts), json_(json) {}

  void add(std::size_t index, const Answers& answers);
  /// Shows what has waited for others, when no more comes.
  void finish();

 private:
  std::string text_of(std::size_t index, const Answers& answers) const;

  const std::vector<data::Prompt>& prompts_;
  bool json_;
  std::map<std::size_t, std::string> waiting_;
  std::size_t num_shown_ = 0;
};

}  // namespace lora_train::app
