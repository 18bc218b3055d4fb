// The tasks of `eval` besides the loss: multiple choice and exact match.
#pragma once

#include "answer_match.h"
#include "lora_train/data/choices.h"
#include "lora_train/evaluate/eval_request.h"
#include "lora_train/generate/generator.h"
#include "lora_train/runtime/setup.h"

namespace lora_train::evaluate {

/// Computes the log-probabilities of all choices and their figures. Throws like Generator::score.
ChoiceFigures evaluate_choices(const data::ChoiceSet& set, generate::Generator& generator, bool quiet);

/// A question from a document: the answer is its last run of supervised tokens, the prompt everything before.
struct Question {
  generate::Prompt prompt;
  std::string expected;  ///< as AnswerMatcher::pick gives it
};

/// Makes a question from every document of `data`; stop_ids end an answer. Throws DataError (file:line) if the regex does not
/// match a row's own answer and for a prompt that leaves no room for an answer; ConfigError for rows without a prompt (loss_on:
/// all) and for truncated rows; StopError.
std::vector<Question> make_questions(const data::NamedStore& data, const runtime::ModelFiles& files,
                                     const AnswerMatcher& matcher, const std::vector<std::int32_t>& stop_ids,
                                     std::int64_t max_new_tokens);

/// Generates greedy answers and compares them. Throws like Generator::run.
MatchFigures evaluate_answers(const std::vector<Question>& questions, const runtime::ModelFiles& files,
                              const AnswerMatcher& matcher, const std::vector<std::int32_t>& stop_ids,
                              generate::Generator& generator, bool quiet);

}  // namespace lora_train::evaluate
