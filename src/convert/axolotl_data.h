// Axolotl's datasets and chat templates.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "converter.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

/// The entries of `datasets` or `test_datasets`; parts of an entry without a counterpart are refused at their place.
std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key);

/// "datasets[0]": the first dataset of chats; empty if there is none.
std::string first_chat_dataset(const Converter& converter);
/// The first of them that leaves its template to the tokenizer, if the file has none for all; empty if there is none.
std::string chat_without_template(const Converter& converter);

/// Converts eot_tokens and special_tokens, and notes if Axolotl does not train the end of an answer. Call it once the
/// template is decided.
void convert_axolotl_end_tokens(Converter& converter);

/// The text that chat_template_jinja stands for: itself, or that of the .jinja file that it names; empty if that is
/// missing.
std::string template_text(const std::string& jinja);

/// A template's `name` under `key`; `jinja` is the chat_template_jinja next to it, and `prefix` the place of both:
/// "datasets[0].".
void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix = {});

/// The words around the columns. Formats are Python's: {instruction}, {input} and {system} stand for columns, {{ and }}
/// for braces.
struct PromptWords {
  std::string with_input, without_input;                          ///< for the prompt; {instruction}, {input}
  std::string system = "{system}";                                ///< before it, if an example has a system prompt
  std::string default_with_input, default_without_input;          ///< text before it, if an example has none
  std::vector<std::pair<std::string, std::string>> columns = {};  ///< our name of a column of type alpaca, theirs
  bool reads_system = false;                                      ///< examples may have a system prompt
  bool has_system_prompt = false;  ///< for all examples; a column in the examples would override it
};

/// The words of a `type` that is a name; nullopt if it is none of these.
std::optional<PromptWords> prompt_words(const std::string& type);
/// The words of a `type` that is a map.
PromptWords prompt_words(const Value& type);

/// "format is "{instruct}", where only {instruction} and {input} have a value."; empty: no problem.
std::string problem_of(const PromptWords& words);
/// "ends its prompt with ...": a prompt without a line feed at its end; empty: each has one.
std::string border_problem(const PromptWords& words);

/// A prompt with these words and one-letter columns.
std::string sample_prompt(const PromptWords& words);

/// The chat template that writes examples of type alpaca with these words.
std::string template_of(const PromptWords& words, bool adds_bos);

}  // namespace lora_train
