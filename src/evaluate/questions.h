// Asking a model: greedy answers, and choices among given ones.
#pragma once

#include "answer_match.h"
#include "choice_figures.h"
#include "lora_train/data/encode/task_rows.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/generate/generator.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::evaluate {

/// Computes the log-probabilities of all choices. Throws like Generator::score.
std::vector<ChoiceOutcome> choose(std::span<const data::ChoiceRow> rows, generate::Generator& generator, bool quiet);

/// How tokens become answers that are compared.
struct AnswerFormat {
  const tokenizer::Tokenizer& tokenizer;
  std::vector<std::int32_t> stop_ids;  ///< end an answer
  AnswerMatcher matcher;
  std::string where;                    ///< the flag or key, for messages
  std::int64_t max_new_tokens = 0;      ///< of an answer
  std::int64_t context_length = 0;      ///< of the model
  data::ConfidenceTokens confidence{};  ///< no part of an answer

  std::string text_of(std::span<const std::int32_t> ids) const;
};

/// The format of a model's answers. Throws FormatError if it has no tokenizer, ConfigError for an invalid regular expression.
AnswerFormat answer_format(const plan::ModelFiles& files, const std::string& regex, const std::string& where,
                           std::int64_t max_new_tokens);

/// The prompt is everything before the answer.
struct Question {
  generate::Prompt prompt;
  std::string expected;  ///< as AnswerMatcher::pick gives it
};

/// Asks for the last answer of a row. Throws DataError (file:line) if the regex does not match the row's own answer, and for a prompt
/// that leaves no room for an answer.
Question make_question(const data::AnswerRow& row, std::size_t index, const AnswerFormat& format);

/// One for every document of `data`. Throws as make_question(); ConfigError for rows without a prompt (loss_on: all) and for
/// truncated rows; StopError.
std::vector<Question> make_questions(const data::NamedStore& data, const AnswerFormat& format);

struct Match {
  bool is_right = false;
  bool is_cut = false;  ///< by max_new_tokens or the context length
};
struct GreedyAnswer : Match {
  std::string text;
};

/// Generates greedy answers and compares them. Throws like Generator::run.
std::vector<GreedyAnswer> ask(std::span<const Question> questions, const AnswerFormat& format,
                              generate::Generator& generator, bool quiet);

MatchFigures match_figures(std::span<const Match> matches);

}  // namespace lora_train::evaluate
