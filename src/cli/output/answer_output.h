// Answers on stdout and in files.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "answers.h"
#include "lora_train/data/encode/prompts.h"

namespace lora_train::cli {

/// One line of JSON: index, prompt, completion, completion_ids, finish_reason, and with a base its own three.
std::string answer_to_json(const data::Prompt& prompt, std::size_t index, const Answers& answers);

/// Prints answers to stdout in the order of the prompts, in whatever order they arrive.
class AnswerPrinter {
 public:
  /// json: lines of answer_to_json; else text, under its prompt if there are several, in two columns if there is a base.
  AnswerPrinter(const std::vector<data::Prompt>& prompts, bool json) : prompts_(prompts), json_(json) {}

  void add(std::size_t index, const Answers& answers);
  /// Prints the answers that waited for earlier ones; call it when no more arrive.
  void finish();

 private:
  std::string text_of(std::size_t index, const Answers& answers) const;

  const std::vector<data::Prompt>& prompts_;
  bool json_;
  std::map<std::size_t, std::string> waiting_;
  std::size_t num_shown_ = 0;
};

}  // namespace lora_train::cli
