// One dataset (all its files) as a table of ids and labels: from the token cache, or read and tokenised.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/token_cache.h"
#include "encode/encode_sample.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/ledger.h"
#include "lora_train/data/read/dataset_files.h"

namespace lora_train::data {

struct LoadOptions {
  EncodeOptions encode;
  OnBadRow on_bad_row = OnBadRow::kError;
  std::optional<std::int64_t> max_examples;  ///< stop after this many good examples
  std::size_t num_threads = 1;               ///< threads that parse, render and encode
  DatasetUse use = DatasetUse::kTraining;
};

struct LoadedDataset {
  DatasetType type = DatasetType::kAuto;  ///< as detected; kAuto if no example was good
  std::shared_ptr<const TokenTable> table;
  std::vector<std::string> files;     ///< the files that StoredExample::file indexes
  Ledger ledger;                      ///< total, bad examples, contents not rendered, thoughts; kept is 0
  std::string fingerprint;            ///< hash of the files' bytes, in order
  std::int64_t num_system_turns = 0;  ///< examples with a system turn
  std::int64_t num_chats = 0;         ///< examples that went through the chat template
};

/// Hash over the bytes of the files of `spec`, in order.
std::string fingerprint_of_files(const DatasetSpec& spec, DatasetUse use);

/// Loads the files of `spec`. `key` names the dataset in messages ("datasets[0]"). Logs the findings. Throws as
/// prepare_data(); with on_bad_row: error, always the first bad example, whatever the number of threads.
LoadedDataset load_dataset(const DatasetSpec& spec, const std::string& key, const LoadOptions& options,
                           const TokenCache& cache);

}  // namespace lora_train::data
