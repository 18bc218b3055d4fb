// What `eval` asks of a model besides its loss.
#pragma once

#include "answer_match.h"
#include "lora_train/data/choices.h"
#include "lora_train/evaluate/eval_request.h"
#include "lora_train/generate/generator.h"
#include "lora_train/runtime/setup.h"

namespace lora_train::evaluate {

/// Log probabilities of every choice. Throws as Generator::score.
ChoiceFigures evaluate_choices(const data::ChoiceSet& set, generate::Generator& generator, bool quiet);

/// What a document is asked, and what it answers: its last run of supervised tokens, and all before it.
struct Question {
  generate::Prompt prompt;
  std::string expected;  ///< as AnswerMatcher::pick gives it
};

/// Of every document of `data`; stop_ids are those that end an answer. Throws DataError (file:line) where the regex finds
/// nothing in a row's own answer and for a prompt without room for an answer, ConfigError for rows without a prompt
/// (loss_on: all) and for rows that were cut, StopError.
std::vector<Question> make_questions(const data::NamedStore& data, const runtime::ModelFiles& files,
                                     const AnswerMatcher& matcher, const std::vector<std::int32_t>& stop_ids,
                                     std::int64_t max_new_tokens);

/// Greedy answers. Throws as Generator::run.
MatchFigures evaluate_answers(const std::vector<Question>& questions, const runtime::ModelFiles& files,
                              const AnswerMatcher& matcher, const std::vector<std::int32_t>& stop_ids,
                              generate::Generator& generator, bool quiet);

}  // namespace lora_train::evaluate
