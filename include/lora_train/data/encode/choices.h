// Multiple-choice rows: a question and its choices, one of which is right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/encode/prompts.h"

namespace lora_train::data {

/// A prompt followed by a choice, as ids: the first num_prompt are the prompt's. A token that has characters of both belongs
/// to the choice, as in training.
struct Choice {
  std::vector<std::int32_t> ids;
  std::size_t num_prompt = 0;
  std::int64_t num_chars = 0;  ///< of the choice's text
};

struct ChoiceRow {
  std::string source;           ///< file:line
  std::vector<Choice> choices;  ///< at least two
  std::size_t answer = 0;       ///< the right one
};

struct ChoiceSet {
  std::vector<ChoiceRow> rows;
  NamedStore right;  ///< prompts followed by their right choices; their tokens are the supervised ones
};

/// The first rows of a data set, all without max_rows; or of each evaluation set of a section. A row is {"prompt": text, "choices": [text,
/// ...], "answer": index from 0 or the choice itself}, or has messages in the place of prompt, which go through the chat
/// template up to where the assistant begins; choices follow the prompt as they are, and nothing follows them. field_map
/// renames prompt, messages, choices and answer.
/// Throws DataError (where = file:line) for every other row, and for one of more than max_tokens tokens (0 = any number).
ChoiceSet read_choice_set(const DatasetSpec& spec, std::optional<std::int64_t> max_rows, const PromptOptions& prompts,
                          std::int64_t max_tokens);
std::vector<ChoiceSet> read_choice_sets(const DataSection& section, const PromptOptions& prompts,
                                        std::int64_t max_tokens);

}  // namespace lora_train::data
