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
  std::optional<std::int64_t> max_rows;  ///< stop after so many good rows
  std::size_t num_threads = 1;           ///< that parse, render and encode
  DatasetUse use = DatasetUse::kTraining;
};

struct LoadedDataset {
  DatasetType type = DatasetType::kAuto;  ///< as detected; kAuto when no row was good
  std::shared_ptr<const TokenTable> table;
  std::vector<std::string> files;  ///< what TokenRow::file counts
  Ledger ledger;                   ///< total, bad rows, contents not rendered; kept is 0
  std::string fingerprint;         ///< of the files' bytes, in order
};

/// The date, for a template that uses it (strftime_now) and so renders other rows tomorrow. Otherwise empty.
std::string date_of(const tokenizer::ChatTemplate& chat_template);

/// Hash over the bytes of the files of `spec`, in order.
std::string fingerprint_of_files(const DatasetSpec& spec, DatasetUse use);

/// Loads the files of `spec`. `key` names the dataset in messages ("datasets[0]"). Logs what was found.
/// Throws as prepare_data says; with on_bad_row: error always the first bad row, however many threads there are.
LoadedDataset load_dataset(const DatasetSpec& spec, const std::string& key, const LoadOptions& options,
                           const TokenCache& cache);

}  // namespace lora_train::data
