// From a row's content to ids and labels: template, tokenizer, loss mask, EOS.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
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

}  // namespace lora_train::data
