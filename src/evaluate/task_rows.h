// The rows of one of eval_tasks, checked and ready to be asked.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/data/encode/answer_rows.h"
#include "questions.h"

namespace lora_train::evaluate {

struct TaskRows {
  EvalTask spec;
  std::unique_ptr<AnswerFormat> format;  ///< never null
  std::vector<data::ChoiceRow> choices;  ///< kind choices: the rows
  std::vector<data::AnswerRow> answers;  ///< other kinds: the rows
  /// Of each of `answers` the greedy answer that is asked for: of all for exact_match, for confidence of those with neither
  /// `correct` nor choices.
  std::vector<std::optional<Question>> questions;
  std::vector<std::size_t> places;  ///< kind confidence: where each of `answers` has its confidence token
  std::int64_t longest = 0;         ///< tokens of the longest sequence, new ones included
  std::string fingerprint;          ///< of all of this

  std::size_t size() const { return spec.kind == TaskKind::kChoices ? choices.size() : answers.size(); }
};

/// Reads the rows of eval_tasks[index]. Throws as TaskEvaluation says.
TaskRows read_task_rows(const Profile& profile, std::size_t index, const plan::ModelFiles& files);

}  // namespace lora_train::evaluate
