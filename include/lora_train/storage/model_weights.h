// The weights of a Hugging Face folder: one safetensors file, or several under an index; and reading them ahead.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

/// The weight_map of model.safetensors.index.json. metadata.total_size is not read: nothing may depend on it.
struct ShardIndex {
  std::filesystem::path path;
  std::map<std::string, std::string, std::less<>> file_of;  ///< tensor name -> plain file name next to the index
  std::vector<std::string> files() const;                   ///< each file once, sorted
};

/// Throws IoError, or FormatError (where = "file" or "file: tensor") if the file is not such an index, or if it names a
/// file by more than a plain name (a separator, "..", a leading dash, a control character).
ShardIndex read_shard_index(const std::filesystem::path& path);

/// All tensors of a model, in one or several files. Copies share the memory maps. Safe to read from several threads.
/// A tensor is found by the name that the text model has for it; TensorEntry::name is its name in the file.
class WeightFiles {
 public:
  explicit WeightFiles(std::vector<SafetensorsFile> files);

  /// Null if there is no such tensor. Pointers are valid as long as this object lives.
  const TensorEntry* find(std::string_view name) const;
  /// All tensors by name.
  const std::map<std::string, TensorEntry, std::less<>>& entries() const { return entries_; }
  /// All names, sorted.
  std::vector<std::string> names() const;
  std::string_view bytes(const TensorEntry& entry) const;
  void release(const TensorEntry& entry) const;
  /// "file: tensor", for errors.
  std::string where(const TensorEntry& entry) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Hash of all names, dtypes and shapes, and of samples of each tensor's bytes, without those beside the text: it
  /// differs between fine-tunes of the same architecture. Reads at most 12 KiB per tensor.
  std::string fingerprint() const;
  /// Removes these tensors from find() and names().
  void drop(const std::vector<std::string>& names);
  /// Gives each tensor the name name_of(its name in the file). Throws FormatError if two get the same.
  void rename(const std::function<std::string(const std::string& name)>& name_of);

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorEntry, std::less<>> entries_;
};

/// Opens and validates every weight file of a folder: model.safetensors, or the shards of model.safetensors.index.json.
/// Each tensor must be in the shard that the index names and in no other; a tensor that the index does not list is
/// ignored with a warning (`warns`). The tensors of the text model are named as its own class names them
/// ("model.embed_tokens.weight", "model.layers.0...", "lm_head.weight"), whatever their prefix in the files
/// ("language_model.model.", "model.language_model.", none). Throws FormatError for invalid files, for two embeddings,
/// for a folder without weights, and for a pickle checkpoint; pickle can run code, so such a file is never opened, and
/// the message says how to convert it.
WeightFiles open_model_weights(const std::filesystem::path& folder, bool warns = true);

/// True if the folder has weights that open_model_weights would open.
bool holds_model_weights(const std::filesystem::path& folder);

/// The part of a checkpoint beside the text model that a tensor belongs to, by its name in the file: "vision_tower",
/// "visual", "multi_modal_projector", "audio_tower" or "mtp". Empty for the text model.
std::string part_beside_text(std::string_view name);

/// Asks the system, from a background thread, to read the *.safetensors files of a folder ahead (posix_fadvise).
/// Ignores all errors: opening the files later reports them. The destructor stops the thread after the current piece of
/// 16 MiB.
class ReadAhead {
 public:
  /// Does nothing if the files have more than `most_bytes` in total: they would evict pages that are needed.
  ReadAhead(const std::filesystem::path& folder, std::int64_t most_bytes);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits until everything is requested. Returns the number of requested bytes.
  std::int64_t wait();

 private:
  std::atomic<bool> is_stopped_ = false;
  std::atomic<std::int64_t> asked_bytes_ = 0;
  std::thread thread_;
};

}  // namespace lora_train::storage
