// Turns an example's content into ids and labels: template, tokenizer, loss mask, EOS, a teacher's soft labels. Also
// makes prompts from examples: the chat of an example, and its text up to the start of the answer.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/ledger.h"
#include "lora_train/data/encode/prompts.h"
#include "read/example_format.h"
#include "read/json_examples.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

class TeacherVocabulary;

struct EncodeOptions {
  const tokenizer::Tokenizer* tokenizer = nullptr;         ///< null: only pre-tokenised examples
  const tokenizer::ChatTemplate* chat_template = nullptr;  ///< null: no chats
  LossOn loss_on = LossOn::kAuto;
  std::int64_t vocab_size = 0;                 ///< ids must be below it; 0 = not checked
  const TeacherVocabulary* teacher = nullptr;  ///< null: ignores soft labels in examples
  Thinking thinking = Thinking::kTemplate;
  NullFields null_fields = NullFields::kDrop;
};

struct EncodedSample {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;  ///< one per id, not shifted, -100 = not trained
  std::vector<float> weights = {};   ///< loss weight per token, 0 if not trained; empty: all trained tokens have 1
  std::int64_t soft_width = 0;       ///< width of the soft labels, stored as in SoftLabels; 0: none
  std::vector<std::int32_t> soft_ids = {};
  std::vector<float> soft_log_probs = {};
  std::string not_rendered = {};  ///< the first part that the template left out, "messages[0].content (system)"
  std::string empty_answer = {};  ///< the first trained answer without content, "messages[1]" or "completion"
  bool is_chat = false, has_system_turn = false, has_dropped_nulls = false, has_decoded_arguments = false;
  std::vector<std::size_t> documents = {};  ///< first tokens, as in TokenSample
  ThoughtCounts thoughts = {};
};

/// Refuses a loss_on that the layout does not support, naming those it does: ConfigError (where = "loss_on"). Refuses
/// layouts that need a tokenizer or a template if there is none: FormatError.
void check_loss_on(DatasetType type, const EncodeOptions& options);

/// True if examples of this layout go through the chat template (for prompt/completion, it depends on the example).
bool is_chat(DatasetType type);

/// Human-readable: "assistant turns", "completions", "all tokens", "the labels of the examples".
std::string describe_loss(DatasetType type, LossOn loss_on);

/// Throws DataError (where empty) for problems of this example: the template refuses it, an id is out of range. Throws
/// FormatError for messages without a chat template.
EncodedSample encode_sample(const Sample& sample, const EncodeOptions& options);

/// The list of messages in an example's prompt field. Throws DataError (where empty) naming the field.
ChatSample chat_of_prompt(const Json& example, const FieldMap& map);

/// The chat of a training example: messages, conversations, or instruction with output. Throws DataError (where empty)
/// naming the keys found and those expected.
ChatSample chat_of_example(const Json& example);

/// Renders the chat through the template, including the start of the assistant's turn. A system message from the
/// options comes first. Warns once about what the template leaves out. Throws FormatError without a template, DataError
/// with --raw or with two system messages, and what the template throws.
std::string render_chat_prompt(const ChatSample& chat, const PromptOptions& options);

/// Puts BOS first if the tokenizer adds one and it is not there; false if that changes nothing.
bool add_bos(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t>& ids);

/// Ids of a prompt, at least one; non-chat text gets BOS if the tokenizer adds one.
std::vector<std::int32_t> encode_prompt(const std::string& text, bool is_chat, const PromptOptions& options);

/// Finds the ids of tokens that servers name by text. Thread-safe.
class TeacherVocabulary {
 public:
  /// Decodes every token once. Without a tokenizer, only understands ids, below `vocab_size`.
  TeacherVocabulary(const tokenizer::Tokenizer* tokenizer, std::int64_t vocab_size);

  /// SoftLabels::kNone if there is no such token, or several have this text. "token_id:17" names an id.
  std::int32_t id_of_number(std::int64_t id) const;
  std::int32_t id_of_text(const std::string& text) const;

 private:
  std::int64_t vocab_size_;
  std::unordered_map<std::string, std::int32_t> id_of_text_;
};

/// Fills sample.soft_* from `logprobs`: {"content": [{"token", "logprob", "top_logprobs"}]} of a chat, the parallel
/// lists of a completion, or the list alone. Tokens are named by "id", by "token_id:17", or by their text. They apply
/// to the last run of trained tokens, up to the first token that differs from the example. Throws DataError (where
/// empty) for any other format.
void add_soft_labels(const Json& logprobs, const TeacherVocabulary& vocabulary, EncodedSample& sample);

}  // namespace lora_train::data
