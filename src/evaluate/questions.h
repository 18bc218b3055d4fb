// Asks a model: greedy answers, compared with the expected ones, and multiple choice among given completions, by their
// log-probabilities.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lora_train/data/encode/task_examples.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/generate/generator.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/ranks/communicator.h"
#include "lora_train/tokenizer/split/text_pattern.h"

namespace lora_train::evaluate {

/// The probabilities of an example's choices: softmax of their summed log-probabilities.
std::vector<double> choice_shares(std::span<const double> log_probabilities);

/// The model's choice for an example.
struct ChoiceOutcome {
  std::size_t taken = 0;  ///< the most likely choice
  bool is_right = false;
  bool is_right_normalized = false;  ///< by log-probabilities per character
  double confidence = 0;             ///< the probability of the choice taken
  double brier = 0;                  ///< sum over choices of (probability - is right)^2
};

/// num_chars: length of each choice's text, above 0. `answer`: index of the right choice. In a tie the first choice
/// counts, as in numpy.argmax and lm-evaluation-harness.
ChoiceOutcome choice_outcome(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars,
                             std::size_t answer);

/// The two accuracies are acc and acc_norm of lm-evaluation-harness.
ChoiceFigures choice_figures(std::span<const ChoiceOutcome> outcomes);

/// Removes white space at both ends and commas between digits ("1,234" becomes "1234"); other white space becomes one
/// space.
std::string normalized_answer(const std::string& text);

/// Compares an answer with the expected one.
class AnswerMatcher {
 public:
  /// `regex` empty: compares whole texts. `where` names the flag or key, for messages. Throws ConfigError for an
  /// invalid regular expression.
  AnswerMatcher(const std::string& regex, const std::string& where);

  /// The normalized answer in a text; nothing if the regex does not match. If a regex picked the answer, also drops a
  /// period or comma after its last digit.
  std::optional<std::string> pick(const std::string& text) const;

 private:
  std::shared_ptr<const tokenizer::TextPattern> pattern_;  ///< null: whole texts
};

/// Computes the log-probabilities of all choices. Throws like Generator::score.
std::vector<ChoiceOutcome> choose(std::span<const data::ChoiceExample> examples, generate::Generator& generator,
                                  bool quiet);

/// How tokens become answers to compare.
struct AnswerFormat {
  const tokenizer::Tokenizer& tokenizer;
  std::vector<std::int32_t> stop_ids;  ///< end an answer
  AnswerMatcher matcher;
  std::string where;                    ///< the flag or key, for messages
  std::int64_t max_new_tokens = 0;      ///< per answer
  std::int64_t context_length = 0;      ///< the model's
  data::ConfidenceTokens confidence{};  ///< not part of an answer

  std::string text_of(std::span<const std::int32_t> ids) const;
};

/// The format of a model's answers. Throws FormatError if it has no tokenizer, ConfigError for an invalid regular
/// expression.
AnswerFormat answer_format(const lora::ModelFiles& files, const std::string& regex, const std::string& where,
                           std::int64_t max_new_tokens);

/// The prompt is everything before the answer.
struct Question {
  generate::Prompt prompt;
  std::string expected;  ///< as AnswerMatcher::pick returns it
};

/// Asks for the last answer of an example. Throws DataError (file:line) if the regex does not match the example's own
/// answer, or if a prompt leaves no room for an answer.
Question make_question(const data::AnswerExample& example, std::size_t index, const AnswerFormat& format);

/// One question for every document of `data`. Throws as make_question(); ConfigError for examples without a prompt
/// (loss_on: all) and for truncated examples; StopError.
std::vector<Question> make_questions(const data::NamedStore& data, const AnswerFormat& format);

struct Match {
  bool is_right = false;
  bool is_cut = false;  ///< at max_new_tokens or the context length
};
struct GreedyAnswer : Match {
  std::string text;
};

/// Generates greedy answers and compares them. Throws like Generator::run.
std::vector<GreedyAnswer> ask(std::span<const Question> questions, const AnswerFormat& format,
                              generate::Generator& generator, bool quiet);

MatchFigures match_figures(std::span<const Match> matches);

/// This rank's part of the examples.
template <typename Example>
std::vector<Example> of_rank(const ranks::Communicator& ranks, std::span<const Example> examples) {
  std::vector<Example> own;
  const auto stride = static_cast<std::size_t>(ranks.world_size());
  for (auto i = static_cast<std::size_t>(ranks.rank()); i < examples.size(); i += stride) own.push_back(examples[i]);
  return own;
}

/// Results of all ranks, in the order of all examples, on every rank. A collective.
template <typename Result>
std::vector<Result> gather_results(ranks::Communicator& ranks, const std::vector<Result>& own, std::size_t num_rows) {
  static_assert(std::is_trivially_copyable_v<Result>);
  if (ranks.world_size() == 1) return own;
  const std::vector<std::string> all =
      ranks.all_gather({reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Result)});
  std::vector<Result> results(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) {
    std::memcpy(&results[i], all[i % all.size()].data() + i / all.size() * sizeof(Result), sizeof(Result));
  }
  return results;
}

}  // namespace lora_train::evaluate
