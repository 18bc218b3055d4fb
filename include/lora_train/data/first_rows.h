// A look at the rows of a dataset, before anything is tokenised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
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

// Looks at a file of JSON rows (.jsonl, .ndjson, .json; not packed). What cannot be read counts as not there: nothing is thrown.

/// Names of the keys of the first rows, each once.
std::vector<std::string> row_keys(const std::filesystem::path& file, std::size_t most_rows = 1000);

/// Names of the keys of the first message in the list `column` of the first row.
std::vector<std::string> first_message_keys(const std::filesystem::path& file, const std::string& column);

/// Whether the rows have the string `text`, in quotes, anywhere.
bool has_string(const std::filesystem::path& file, const std::string& text);

/// nullopt if the file is not there or of another kind.
std::optional<std::size_t> count_rows(const std::filesystem::path& file);

}  // namespace lora_train::data
