// From a row's content to ids and labels: template, tokenizer, loss mask, EOS, soft labels of a teacher; and prompts from rows: the
// chat of a row, and its text up to where the answer starts.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/encode/prompts.h"
#include "read/json_rows.h"
#include "read/row_format.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

class TeacherVocabulary;

struct EncodeOptions {
  const tokenizer::Tokenizer* tokenizer = nullptr;         ///< null: only pre-tokenised rows
  const tokenizer::ChatTemplate* chat_template = nullptr;  ///< null: no chats
  LossOn loss_on = LossOn::kAuto;
  std::int64_t vocab_size = 0;                 ///< ids must lie below; 0 = not checked
  const TeacherVocabulary* teacher = nullptr;  ///< null: rows have no soft labels, whatever is in them
};

struct EncodedSample {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;  ///< as long as ids, not shifted, -100 = not trained
  std::vector<float> weights =
      {};                       ///< of each token in the loss, 0 if it is not trained; empty: all of the trained are 1
  std::int64_t soft_width = 0;  ///< of the soft labels, which are as SoftLabels has them; 0: none
  std::vector<std::int32_t> soft_ids = {};
  std::vector<float> soft_log_probs = {};
  std::string not_rendered = {};  ///< "messages[0].content (system)": what the template left out first
  std::string empty_answer = {};  ///< "messages[1]" or "completion": the first trained answer that has no content
};

/// Refuses a loss_on that the layout cannot have, naming those it can: ConfigError (where = "loss_on"). Refuses layouts
/// that need a tokenizer or a template if there is none: FormatError.
void check_loss_on(DatasetType type, const EncodeOptions& options);

/// Whether rows of this layout go through the chat template (prompt/completion may: per row).
bool is_chat(DatasetType type);

/// For people: "assistant turns", "completions", "all tokens", "the labels of the rows".
std::string describe_loss(DatasetType type, LossOn loss_on);

/// Throws DataError (where empty) for what is wrong with this row: the template refuses it, an id is out of range.
/// FormatError if messages meet no chat template.
EncodedSample encode_sample(const Sample& sample, const EncodeOptions& options);

/// The list of messages in the field prompt of a row. Throws DataError (where empty) naming the field.
ChatSample chat_of_prompt(const Json& row, const FieldMap& map);

/// The chat of a row of training data: messages, conversations, or instruction with output. Throws DataError (where empty)
/// naming the keys found and those expected.
ChatSample chat_of_row(const Json& row);

/// The chat through the template, with what begins the assistant's turn. A system message of the options comes first.
/// Warns once of what the template leaves out. Throws FormatError without a template, DataError with --raw or with two
/// system messages, and what the template throws.
std::string render_chat_prompt(const ChatSample& chat, const PromptOptions& options);

/// Ids of a prompt, at least one; text that is not a chat gets BOS where the tokenizer adds one.
std::vector<std::int32_t> encode_prompt(const std::string& text, bool is_chat, const PromptOptions& options);

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
