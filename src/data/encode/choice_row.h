// One multiple-choice row, as tokens.
#pragma once

#include <cstdint>
#include <string>

#include "lora_train/data/encode/choices.h"
#include "read/row_format.h"

namespace lora_train::data {

/// Reads a row as choices.h describes it. Throws DataError (where empty) for another row, and for one of more than max_tokens tokens
/// (0 = any number).
ChoiceRow read_choice_row(const Json& row, std::string source, const PromptOptions& prompts, const FieldMap& map,
                          std::int64_t max_tokens);

}  // namespace lora_train::data
