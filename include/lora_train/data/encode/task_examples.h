// Examples of evaluation tasks: a question and its choices, one of which is right; examples whose last answer is
// generated or judged; and the tokens that state an answer's confidence (confidence_tokens).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/encode/data_context.h"
#include "lora_train/data/encode/prompts.h"

namespace lora_train::tokenizer {
class Tokenizer;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

/// A prompt followed by a choice, as ids; the first num_prompt belong to the prompt. A token with characters of both
/// belongs to the choice, as in training.
struct Choice {
  std::vector<std::int32_t> ids;
  std::size_t num_prompt = 0;
  std::int64_t num_chars = 0;  ///< characters in the choice's text
};

struct ChoiceExample {
  std::string source;           ///< file:line
  std::vector<Choice> choices;  ///< at least two
  std::size_t answer = 0;       ///< index of the right choice
};

struct ChoiceSet {
  std::vector<ChoiceExample> examples;
  NamedStore right;  ///< prompts followed by their right choices; only the choice tokens are supervised
};

/// Reads the first max_examples examples of a dataset (all if unset), or of each evaluation set of a section. An
/// example is {"prompt": text, "choices": [text, ...], "answer": index from 0 or the choice itself}. Instead of prompt
/// it may have messages, which go through the chat template up to the start of the assistant's turn. Choices follow the
/// prompt unchanged, and nothing follows them. field_map renames prompt, messages, choices and answer.
/// Throws DataError (where = file:line) for any other example, and for one with more than max_tokens tokens (0 = no
/// limit).
ChoiceSet read_choice_set(const DatasetSpec& spec, std::optional<std::int64_t> max_examples,
                          const PromptOptions& prompts, std::int64_t max_tokens);
std::vector<ChoiceSet> read_choice_sets(const DataSection& section, const PromptOptions& prompts,
                                        std::int64_t max_tokens);

/// The tokens [begin, end) of an example's last answer: the last run of trained labels. Empty if there is none.
std::pair<std::size_t, std::size_t> answer_span(std::span<const std::int32_t> labels);

struct AnswerExample {
  std::string source;  ///< file:line
  std::vector<std::int32_t> ids;
  std::size_t answer_begin = 0, answer_end = 0;  ///< never empty; includes the end of the turn
  std::optional<bool> correct = {};              ///< the example's field `correct`
  std::optional<ChoiceExample> choices = {};     ///< set if requested, for an example with `choices` and no
                                                 ///< `correct`
};

/// Reads the first max_examples examples of a dataset (all if unset), in any layout of training data (or as spec.type
/// says). The last answer is the last assistant turn, the completion, or the last run of labels. Caches nothing.
/// Throws DataError (where = file:line) for an example that is malformed, has no answer, has only an answer, or has a
/// `correct` that is not true or false; and for a file without examples. with_choices: examples with `choices` also
/// have their `choices` and `answer` read, as in read_choice_set(), for the prompt of the last answer.
std::vector<AnswerExample> read_answer_examples(const DatasetSpec& spec, std::optional<std::int64_t> max_examples,
                                                const DataContext& context, bool with_choices = false,
                                                Thinking thinking = Thinking::kTemplate);

/// The tokens of confidence_tokens, in profile order.
struct ConfidenceTokens {
  std::vector<std::string> names;
  std::vector<std::int32_t> ids;
  std::vector<double> probabilities;  ///< the probability of being right that each token states

  bool has(std::int32_t id) const;
  /// The ids of a text without these tokens.
  std::vector<std::int32_t> without(std::span<const std::int32_t> ids_of_text) const;
};

/// Throws ConfigError("confidence_tokens") for a text that is not one token of the tokenizer.
ConfidenceTokens confidence_tokens(const TaskSection& section, const tokenizer::Tokenizer& tokenizer);

/// The position in `ids` of the one confidence token of an answer [begin, end). Throws DataError (where = source)
/// unless there is exactly one.
std::size_t find_confidence(std::span<const std::int32_t> ids, std::size_t begin, std::size_t end,
                            const ConfidenceTokens& tokens, const std::string& source);

}  // namespace lora_train::data
