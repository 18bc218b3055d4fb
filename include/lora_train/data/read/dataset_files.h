// Finds the files that a dataset's path names.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::data {

/// Selects the split of a Hub dataset that has several: training data use "train"; evaluation data must name one.
enum class DatasetUse { kTraining, kEvaluation };

/// `spec.path` is a file, a folder (its .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow and .feather files, or its
/// .txt files if it has no other; also text files compressed as .gz or .zst; subfolders included, hidden ones not), a
/// glob (*, ?, [...]; not **), or org/name[@revision] in the local Hugging Face cache. Sorted by name, so that the
/// order of examples never depends on the file system.
/// For a Hub dataset, or a folder when `spec` has a split or a subset, returns the files of one split.
/// Throws DataError (where = path), with what to do, if nothing is found or a file has an unsupported type (xz, ...;
/// Parquet without Arrow).
std::vector<std::string> dataset_files(const DatasetSpec& spec, DatasetUse use);

/// Name for an unnamed dataset: "train" for "data/train.jsonl", the folder's name for a folder.
std::string dataset_name(const std::string& path);

}  // namespace lora_train::data
