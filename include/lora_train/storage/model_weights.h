// The weights of a Hugging Face folder: one safetensors file, or several under an index.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

/// The map of model.safetensors.index.json. metadata.total_size is not read: nothing may depend on it.
struct ShardIndex {
  std::filesystem::path path;
  std::map<std::string, std::string, std::less<>> file_of;  ///< tensor name -> plain file name beside the index
  std::vector<std::string> files() const;                   ///< each file once, sorted
};

/// Throws IoError, or FormatError (where = "file" or "file: tensor") when the file is not such an index or names a
/// file that is not a plain name (a separator, "..", a leading dash, a control character).
ShardIndex read_shard_index(const std::filesystem::path& path);

/// All tensors of a model, over one or many files. Copies share the maps. Safe to read from many threads.
class WeightFiles {
 public:
  explicit WeightFiles(std::vector<SafetensorsFile> files);

  /// Null when there is no such tensor. Pointers live as long as this object.
  const TensorEntry* find(std::string_view name) const;
  /// All names, sorted.
  std::vector<std::string> names() const;
  std::string_view bytes(const TensorEntry& entry) const;
  void release(const TensorEntry& entry) const;
  /// "file: tensor", for errors.
  std::string where(const TensorEntry& entry) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Hash of all names, dtypes and shapes and of samples of each tensor's bytes: another fine-tune of the same
  /// architecture has another one. Reads at most 12 KiB per tensor.
  std::string fingerprint() const;
  /// Forgets these tensors: find() and names() no longer know them.
  void drop(const std::vector<std::string>& names);

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorEntry, std::less<>> entries_;
};

/// Opens and validates every weight file of a folder: model.safetensors, or the shards of
/// model.safetensors.index.json (each name must be in the shard it is mapped to and in no other; a tensor of a shard
/// that the index does not list is warned of and left out). Throws FormatError for what is wrong, for a folder without
/// weights, and, with the way to convert it, for a pickle checkpoint (never opened: pickle runs code).
WeightFiles open_model_weights(const std::filesystem::path& folder);

}  // namespace lora_train::storage
