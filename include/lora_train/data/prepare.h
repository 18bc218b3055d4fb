// Turns dataset files into token ids and labels: reads, detects the layout, renders, masks, applies the length policy.
// Also makes the plan of a run from a profile and such data, for training and for `tokenize --step`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/ledger.h"
#include "lora_train/data/encode/data_context.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

/// dataset_prepared_path, or user_token_cache().
std::filesystem::path token_cache_folder(const DataSection& section);

/// The names of the evaluation sets that prepare_data() makes: the eval_datasets, then the held-out split.
std::vector<std::string> evaluation_names(const DataSection& section);

/// Tokens per example before the length policy.
struct LengthStatistics {
  std::int64_t num_examples = 0, num_tokens = 0, longest = 0, percentile_50 = 0, percentile_99 = 0;
};

struct PreparedData {
  DocumentStore train;
  std::vector<WeightedRange> train_ranges;  ///< one per dataset, in document order
  std::vector<NamedStore> evals;
  std::int64_t max_seq_len = 0;  ///< resolved
  bool max_seq_len_is_auto = false;
  LengthStatistics train_lengths;
  Ledger ledger;                 ///< for the training files (examples later held out for validation count as kept)
  std::string loss_description;  ///< human-readable: "assistant turns of chats"
  bool has_chats = false, has_texts = false;  ///< training examples through the chat template, and text as it is
  /// Chats only: the token that ends an assistant turn. Warnings about it are already logged.
  std::optional<std::int32_t> stop_token_id;
  std::string fingerprint;  ///< hash128 over the bytes of all training files and every relevant option

  /// True if any token of any set has a loss weight other than 1.
  bool has_weights() const;
};

/// Reads and tokenises everything. With need_train false, reads only the evaluation sets; val_set_size still needs the
/// training examples (train is then left empty). Logs, per dataset, the detected layout with its reason, lengths,
/// max_seq_len with its waste, and the ledger.
/// Throws DataError (where = file:line:byte, file:line or file): malformed examples, empty data, overlong examples
/// under overlength: error, all examples masked (the first examples are shown), too many examples lost. ConfigError:
/// conflicting options. IoError: a file cannot be read.
PreparedData prepare_data(const DataSection& section, const DataContext& context, bool need_train);

/// The PreparedData::fingerprint that prepare_data() would return with this max_seq_len. Reads the training files but
/// does not parse examples. Throws DataError or IoError if a file cannot be read.
std::string data_fingerprint(const DataSection& section, const DataContext& context, std::int64_t max_seq_len);

/// Calls on_text with the "text" of every example of a file, in any format that a dataset may have. Throws DataError
/// (file:line or file:line:byte) for an example without a string "text", IoError.
void read_texts(const std::string& file, const std::function<void(const std::string&)>& on_text);

/// For `tokenize --show`: one example, token by token.
struct ExampleView {
  std::string source;  ///< file:line
  std::vector<std::int32_t> ids, labels;
  /// The text that each token adds to the decoded text; a character made of several tokens is with its last one. Their
  /// concatenation is `text`. Empty without a tokenizer, as is `text`.
  std::vector<std::string> pieces = {};
  std::vector<bool> is_special = {};  ///< per token; empty without a tokenizer
  std::string text;
  std::vector<float> weights = {};  ///< loss weights of the tokens; empty: all 1
};

/// Documents first .. first + count - 1 of the store (fewer at its end).
std::vector<ExampleView> view_examples(const DocumentStore& store, const tokenizer::Tokenizer* tokenizer,
                                       std::size_t first, std::size_t count);

/// Rows per micro-batch of a rank, and rows or documents (batch_unit) per step across all ranks.
struct BatchSizes {
  std::int64_t micro = 1, global = 1;
};

/// micro_batch_size: auto is the largest divisor of a rank's rows per step (rounded up) that keeps a micro-batch within
/// this many tokens. gradient_accumulation_steps counts the micro-batches of each rank.
///
/// With batch_unit: documents, `rows_of_rank` is the most rows that a rank has in a step (0: unknown, as many as
/// documents). A micro-batch has no more, and auto need not divide them, since they vary by step.
constexpr std::int64_t kAutoMicroBatchTokens = 4096;
BatchSizes resolve_batch_sizes(const ScheduleSection& section, std::int64_t max_seq_len,
                               std::int64_t auto_tokens = kAutoMicroBatchTokens, std::int64_t num_ranks = 1,
                               std::int64_t rows_of_rank = 0);

/// For resolve_batch_sizes(): with batch_unit: documents, the most rows that a rank has in a step of the first epoch;
/// else 0.
std::int64_t count_rows_of_rank(const Profile& profile, const PreparedData& prepared, std::int64_t num_ranks = 1);

/// The rank whose micro-batches a plan has.
struct RankOf {
  std::int64_t rank = 0, world_size = 1;
};

/// The plan of a run, including the dataset weights. `prepared` comes from the same profile and must outlive the plan.
RunPlan plan_run(const Profile& profile, const PreparedData& prepared, const BatchSizes& sizes, RankOf of = {});

}  // namespace lora_train::data
