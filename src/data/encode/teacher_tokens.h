// The log-probabilities of a teacher, as servers return them, in the tokens of a row.
#pragma once

#include <string>
#include <unordered_map>

#include "encode_sample.h"
#include "read/json_rows.h"

namespace lora_train::tokenizer {
class Tokenizer;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

/// Finds the ids of the tokens that servers name by their text. Thread-safe.
class TeacherVocabulary {
 public:
  /// Decodes every token once. Without a tokenizer only ids are understood, below `vocab_size`.
  TeacherVocabulary(const tokenizer::Tokenizer* tokenizer, std::int64_t vocab_size);

  /// SoftLabels::kNone for a text that no token has, or several.
  std::int32_t id_of_text(const std::string& text) const;
  std::int64_t vocab_size() const { return vocab_size_; }

 private:
  std::int64_t vocab_size_;
  std::unordered_map<std::string, std::int32_t> id_of_text_;
};

/// Fills sample.soft_* from `logprobs`: {"content": [{"token", "logprob", "top_logprobs"}]} of a chat, the parallel lists of a
/// completion, or the list alone. Tokens are named by "id", by "token_id:17", or by their text. They belong to the last stretch of
/// trained tokens, and count up to the first one that the row has otherwise. Throws DataError (where empty) for another form.
void add_soft_labels(const Json& logprobs, const TeacherVocabulary& vocabulary, EncodedSample& sample);

}  // namespace lora_train::data
