// Rows whose last answer is asked for, or judged: evaluation tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/encode/choices.h"
#include "lora_train/data/encode/data_context.h"

namespace lora_train::data {

/// The tokens [begin, end) of a row's last answer: the last run of labels that are trained. Empty if there is none.
std::pair<std::size_t, std::size_t> answer_span(std::span<const std::int32_t> labels);

struct AnswerRow {
  std::string source;  ///< file:line
  std::vector<std::int32_t> ids;
  std::size_t answer_begin = 0, answer_end = 0;  ///< never empty; what ends a turn included
  std::optional<bool> correct = {};              ///< the row's field `correct`
  std::optional<ChoiceRow> choices = {};         ///< of a row with `choices` and no `correct`, where they are asked for
};

/// The first rows of a data set, all without max_rows, in any layout of training data (or as spec.type says). Their last answer is
/// the last assistant turn, the completion, or the last run of labels. Keeps nothing in the token cache.
/// Throws DataError (where = file:line) for a row that is malformed, has no answer, has none but an answer, or has another `correct`
/// than true or false; and for a file without rows. with_choices: reads the fields `choices` and `answer` of rows that have the
/// first, as choices.h describes them, for the prompt of the last answer.
std::vector<AnswerRow> read_answer_rows(const DatasetSpec& spec, std::optional<std::int64_t> max_rows,
                                        const DataContext& context, bool with_choices = false);

}  // namespace lora_train::data
