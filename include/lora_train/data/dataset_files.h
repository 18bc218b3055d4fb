// Which files a dataset's path names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::data {

/// `path` is a file, a folder (its .jsonl, .ndjson, .json, .csv and .tsv files, or its .txt files when it has no other;
/// also packed as .gz or .zst; subfolders included, hidden ones not) or a glob (*, ?, [...]; not **). Sorted by name, so
/// that the order of rows never depends on the file system.
/// Throws DataError (where = path) if nothing is found or a file is of a kind that is not read (Parquet, xz, ...),
/// with what to do.
std::vector<std::filesystem::path> dataset_files(const std::string& path);

/// For a dataset without a name: "train" of "data/train.jsonl", the folder's name of a folder.
std::string dataset_name(const std::string& path);

}  // namespace lora_train::data
