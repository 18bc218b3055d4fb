// From dataset files to token ids and labels: read, detect the layout, render, mask, apply the length policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/data/document_store.h"
#include "lora_train/data/ledger.h"
#include "lora_train/data/plan.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

/// The part of a profile that decides ids and labels; members as in Profile.
struct DataOptions {
  std::vector<DatasetSpec> datasets, eval_datasets;
  double val_set_size = 0;  ///< 0 = none; below 1 a share of the training rows (rounded up), else a count
  LossOn loss_on = LossOn::kAuto;
  std::optional<std::int64_t> max_seq_len;  ///< nullopt = auto
  Overlength overlength = Overlength::kError;
  bool packing = true;  ///< only for the waste that is printed
  OnBadRow on_bad_row = OnBadRow::kError;
  double max_drop_fraction = 0.01;
  std::optional<std::int64_t> eval_max_samples;  ///< the first N rows of each evaluation set; nullopt = all
  std::int64_t seed = 42;
  std::filesystem::path cache_folder;  ///< of the token cache; empty = tokens are kept in memory
  std::filesystem::path stage_folder;  ///< on a local disk, tables are copied there first; empty = none
  std::size_t num_threads = 0;         ///< that tokenise; 0 = one a core
};

/// Options of a profile, with the token cache in dataset_prepared_path or the user's cache folder
/// ($XDG_CACHE_HOME or ~/.cache, then lora-train/tokens).
DataOptions data_options(const Profile& profile);

/// What the model allows. 0 = unknown, not checked.
struct DataLimits {
  std::int64_t vocab_size = 0;               ///< ids must lie in [0, vocab_size)
  std::int64_t max_position_embeddings = 0;  ///< caps max_seq_len: auto; a larger number is warned of
};

struct NamedStore {
  std::string name;  ///< "validation" for a held-out split, else the dataset's name
  DocumentStore store;
  Ledger ledger;  ///< of its files; of a split: total = kept
};

/// Tokens per row before the length policy.
struct LengthStatistics {
  std::int64_t num_rows = 0, num_tokens = 0, longest = 0, percentile_50 = 0, percentile_99 = 0;
};

struct PreparedData {
  DocumentStore train;
  std::vector<WeightedRange> train_ranges;  ///< of every dataset, in the order of the documents
  std::vector<NamedStore> evals;
  std::int64_t max_seq_len = 0;  ///< resolved
  bool max_seq_len_is_auto = false;
  LengthStatistics train_lengths;
  Ledger ledger;                 ///< of the training files (rows then held out for validation count as kept)
  std::string loss_description;  ///< for people: "assistant turns of chats"
  /// Of chats: the token that ends an assistant turn. Warnings about it were logged.
  std::optional<std::int32_t> stop_token_id;
  std::string fingerprint;  ///< hash128 over the bytes of all training files and every option that matters

  /// Whether a token of any set counts for other than 1 in the loss.
  bool has_weights() const;
};

/// Reads and tokenises everything. tokenizer and chat_template may be null when no row needs them (pre-tokenised).
/// With need_train false only evaluation sets are read, except that val_set_size needs the training rows (train is
/// then left empty). Logs per dataset the detected layout with its reason, lengths, max_seq_len with its waste, and
/// the ledger.
/// Throws DataError (where = file:line:byte, file:line or file): malformed rows, empty data, too long rows under
/// overlength: error, all rows masked (the first rows are shown), too many rows lost. ConfigError: contradicting
/// options. IoError: a file that cannot be read.
PreparedData prepare_data(const DataOptions& options, const tokenizer::Tokenizer* tokenizer,
                          const tokenizer::ChatTemplate* chat_template, const DataLimits& limits, bool need_train);

/// Calls on_text with the "text" of every row of a file, in any of the forms that a dataset may have.
/// Throws DataError (file:line or file:line:byte) for a row without a string "text", IoError.
void read_texts(const std::string& file, const std::function<void(const std::string&)>& on_text);

/// For `tokenize --show`: one row, token by token.
struct RowView {
  std::string source;  ///< file:line
  std::vector<std::int32_t> ids, labels;
  /// What each token adds to the decoded text; a character made of several tokens stands at its last one. Joined they
  /// are `text`. Empty without a tokenizer, as is `text`.
  std::vector<std::string> pieces = {};
  std::vector<bool> is_special = {};  ///< per token; empty without a tokenizer
  std::string text;
  std::vector<float> weights = {};  ///< of the tokens in the loss; empty: all 1
};

/// Documents first .. first + count - 1 of the store (fewer at its end).
std::vector<RowView> view_rows(const DocumentStore& store, const tokenizer::Tokenizer* tokenizer, std::size_t first,
                               std::size_t count);

}  // namespace lora_train::data
