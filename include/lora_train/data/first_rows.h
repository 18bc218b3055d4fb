// A look at the first rows of a dataset, before anything is tokenised.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/data/read/dataset_files.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

struct FirstRowsOptions {
  DatasetUse use = DatasetUse::kTraining;
  OnBadRow on_bad_row = OnBadRow::kError;
  /// As in EncodeOptions; null: there is none.
  const tokenizer::Tokenizer* tokenizer = nullptr;
  const tokenizer::ChatTemplate* chat_template = nullptr;
  LossOn loss_on = LossOn::kAuto;
  bool is_model_known = true;  ///< false: it is not on this machine, so that rows are only parsed
};

struct FirstRows {
  DatasetType type = DatasetType::kAuto;   ///< their layout
  std::string reason;                      ///< for the log: "the first row has messages"
  std::int64_t num_rows = 0;               ///< how many were read
  std::vector<std::string> warnings = {};  ///< of chats: whether the model can learn to stop with this template
};

/// Reads up to 20 rows of the first file as training would, through template and tokenizer. Throws what training would: DataError for
/// a row, unless bad rows are dropped and another one can be read; what check_loss_on(), dataset_files() and the file throw.
FirstRows look_at_first_rows(const DatasetSpec& spec, const FirstRowsOptions& options);

/// What a run's result may be asked on a command line.
struct ShortPrompt {
  std::string text;
  bool is_raw = false;  ///< of prompt/completion rows, which know no chat template
};

/// The first prompt among the first 20 rows that is one line of at most 80 characters: of a chat, a question that nothing but its
/// answer follows or precedes. Nothing where there is none, or the rows cannot be read.
std::optional<ShortPrompt> first_short_prompt(const DatasetSpec& spec, DatasetUse use);

}  // namespace lora_train::data
