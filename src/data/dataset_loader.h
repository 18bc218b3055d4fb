// One dataset (all its files) into a store of ids and labels.
#pragma once

#include <optional>
#include <string>

#include "encode_sample.h"
#include "lora_train/config/profile.h"
#include "lora_train/data/document_store.h"
#include "lora_train/data/ledger.h"

namespace lora_train::data {

struct LoadOptions {
  EncodeOptions encode;
  OnBadRow on_bad_row = OnBadRow::kError;
  std::optional<std::int64_t> max_rows;  ///< stop after so many good rows
};

struct LoadedDataset {
  DatasetType type = DatasetType::kAuto;  ///< as detected; kAuto when no row was good
  std::string fingerprint;                ///< of the files' bytes, in order
};

/// Reads the files of `spec`, appends every good row to `store` and counts the others into `ledger` (total grows by the
/// rows read; kept is left alone). `key` names the dataset in messages ("datasets[0]"). Logs what was found.
/// Throws as prepare_data says.
LoadedDataset load_dataset(const DatasetSpec& spec, const std::string& key, const LoadOptions& options,
                           DocumentStore& store, Ledger& ledger);

}  // namespace lora_train::data
