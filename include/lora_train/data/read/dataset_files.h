// Which files a dataset's path names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::data {

/// What decides the split of a dataset from the Hub that has several: training data are "train", evaluation data must say.
enum class DatasetUse { kTraining, kEvaluation };

/// `spec.path` is a file, a folder (its .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow and .feather files, or its
/// .txt files when it has no other; text files also packed as .gz or .zst; subfolders included, hidden ones not), a glob (*,
/// ?, [...]; not **), or org/name[@revision] in the local Hugging Face cache. Sorted by name, so that the order of rows
/// never depends on the file system.
/// Of a dataset from the Hub, and of a folder where `spec` has a split or a subset, the files of one split are taken.
/// Throws DataError (where = path) if nothing is found or a file is of a kind that is not read (xz, ...; Parquet where
/// Arrow is not there), with what to do.
std::vector<std::filesystem::path> dataset_files(const DatasetSpec& spec, DatasetUse use);

/// For a dataset without a name: "train" of "data/train.jsonl", the folder's name of a folder.
std::string dataset_name(const std::string& path);

}  // namespace lora_train::data
