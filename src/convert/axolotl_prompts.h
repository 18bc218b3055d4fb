// Rows that Axolotl writes as prompt and answer with words of its own: `type: alpaca` and the like, or a map with `format`.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// The words around the columns. Formats are Python's: {instruction}, {input} and {system} stand for columns, {{ and }} for braces.
struct PromptWords {
  std::string with_input, without_input;                          ///< of the prompt; {instruction}, {input}
  std::string system = "{system}";                                ///< before it, where a row has a system prompt
  std::string default_with_input, default_without_input;          ///< text before it, where a row has none
  std::vector<std::pair<std::string, std::string>> columns = {};  ///< our name of a column of type alpaca, theirs
  bool reads_system = false;                                      ///< whether rows may have a system prompt
  bool has_system_prompt = false;                                 ///< for all rows; a column of the rows would win
};

/// The words of a `type` that is a name; nullopt if it is none of these.
std::optional<PromptWords> prompt_words(const std::string& type);
/// The words of a `type` that is a map.
PromptWords prompt_words(const Value& type);

/// "format is "{instruct}", where only {instruction} and {input} have a value."; empty: nothing is wrong.
std::string problem_of(const PromptWords& words);
/// "ends its prompt with ...": a prompt without a line feed at its end; empty: each has one.
std::string border_problem(const PromptWords& words);

/// A prompt of these words, with columns of one letter.
std::string sample_prompt(const PromptWords& words);

/// The chat template that writes rows of type alpaca so.
std::string template_of(const PromptWords& words, bool adds_bos);

}  // namespace lora_train
