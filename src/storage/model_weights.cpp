#include "lora_train/storage/model_weights.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";

/// True if the file exists. Throws for a link without a target, which an interrupted Hub download leaves.
bool is_present(const fs::path& path) {
  std::error_code code;  // a link to itself, a name that is too long: not there
  if (fs::exists(path, code)) return true;
  if (fs::is_symlink(path, code)) {
    throw FormatError(path.string(), "links to \"" + fs::read_symlink(path).string() +
                                         "\", which does not exist: the download was not finished, run it again");
  }
  return false;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Explains what the folder holds instead of readable weights, and what to do.
[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string expected = std::string("no ") + kSingle + " and no " + kIndexFile + " here";
  for (const auto& name : files_in(folder)) {
    if (name == "adapter_model.safetensors") {
      throw FormatError(folder.string(),
                        expected +
                            ", but a LoRA adapter: give the folder of its base model (base_model_name_or_path "
                            "in adapter_config.json)");
    }
    if (name.ends_with(".safetensors")) {
      throw FormatError(folder.string(), expected + ", but \"" + name +
                                             "\": the Hugging Face layout is needed, with the " +
                                             "index file when there are several parts; download the whole repository");
    }
  }
  for (const auto& name : files_in(folder)) {
    for (const char* pickle : {".bin", ".pt", ".pth", ".ckpt", ".pkl"}) {
      if (!name.ends_with(pickle)) continue;
      throw FormatError((folder / name).string(),
                        "is a pickle checkpoint, which can run code when opened and is never read; convert it to "
                        "safetensors: python -c "
                        "\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('" +
                            folder.string() + "').save_pretrained('" + folder.string() + "-safetensors')\"");
    }
    if (name.ends_with(".gguf")) {
      throw FormatError((folder / name).string(),
                        "is a GGUF file, for inference only: use the Hugging Face folder of the model");
    }
  }
  throw FormatError(folder.string(),
                    expected + ": download the weights, or write random ones with lora-train init-model");
}

std::vector<SafetensorsFile> open_shards(const fs::path& folder, const ShardIndex& index) {
  const auto names = index.files();
  std::vector<std::string> missing;
  for (const auto& name : names) {
    if (!is_present(folder / name)) missing.push_back(name);
  }
  if (!missing.empty()) {
    constexpr std::size_t kNamed = 10;
    const std::size_t count = missing.size();
    if (count > kNamed) missing.resize(kNamed);
    throw FormatError(index.path.string(), std::to_string(count) + " of the " + std::to_string(names.size()) +
                                               " files named are not in the folder (" + join(missing) +
                                               (count > kNamed ? ", ..." : "") + "): download them");
  }
  std::vector<SafetensorsFile> files;
  for (const auto& name : names) files.emplace_back(folder / name);
  return files;
}

void check_index(const ShardIndex& index, const WeightFiles& weights) {
  for (const auto& [tensor, name] : index.file_of) {
    const auto* entry = weights.find(tensor);
    if (entry == nullptr || weights.files()[entry->file].path().filename() != name) {
      throw FormatError(index.path.string() + ": " + tensor,
                        "the index says \"" + name + "\", but " +
                            (entry == nullptr ? "no file of the folder"
                                              : "only " + weights.files()[entry->file].path().filename().string()) +
                            " holds that tensor: index and files do not match, download them again");
    }
  }
}

}  // namespace

WeightFiles::WeightFiles(std::vector<SafetensorsFile> files) : files_(std::move(files)) {
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    for (TensorEntry entry : files_[i].tensors()) {
      entry.file = i;
      const auto [at, is_new] = entries_.emplace(entry.name, entry);
      if (!is_new) {
        throw FormatError(where(entry), "the tensor is also in " + files_[at->second.file].path().filename().string() +
                                            "; only one file may hold it: download the model again");
      }
    }
  }
}

const TensorEntry* WeightFiles::find(std::string_view name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second;
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::string_view WeightFiles::bytes(const TensorEntry& entry) const { return files_.at(entry.file).bytes(entry); }

void WeightFiles::release(const TensorEntry& entry) const { files_.at(entry.file).release(entry); }

std::string WeightFiles::where(const TensorEntry& entry) const {
  return files_.at(entry.file).path().string() + ": " + entry.name;
}

std::string WeightFiles::fingerprint() const {
  constexpr std::size_t kSample = 4096;
  Hasher hasher;
  for (const auto& [name, entry] : entries_) {
    throw_if_stop_requested();
    hasher.update(name + " " + describe(entry) + "\n");
    const std::string_view all = bytes(entry);
    for (const std::size_t begin : {std::size_t{0}, all.size() / 2, all.size() - std::min(all.size(), kSample)}) {
      hasher.update(all.substr(begin, kSample));
    }
  }
  return hasher.hex();
}

void WeightFiles::drop(const std::vector<std::string>& names) {
  for (const auto& name : names) entries_.erase(name);
}

WeightFiles open_model_weights(const std::filesystem::path& folder) {
  if (!fs::is_directory(folder))
    throw FormatError(folder.string(), "no such folder; expected a Hugging Face model folder");
  const bool has_index = is_present(folder / kIndexFile);
  if (is_present(folder / kSingle)) {
    if (has_index)
      log_warning(folder.string() + ": holds both " + kSingle + " and " + kIndexFile + "; the index is not used");
    return WeightFiles({SafetensorsFile(folder / kSingle)});
  }
  if (!has_index) refuse_folder(folder);

  const ShardIndex index = read_shard_index(folder / kIndexFile);
  WeightFiles weights(open_shards(folder, index));
  check_index(index, weights);
  std::vector<std::string> stray;
  for (auto& name : weights.names()) {
    if (index.file_of.count(name) == 0) stray.push_back(name);
  }
  if (!stray.empty()) {
    log_warning(index.path.string() + ": " + std::to_string(stray.size()) +
                " tensors in the files are not in the index and are ignored, starting with \"" + stray.front() + "\"");
    weights.drop(stray);
  }
  return weights;
}

}  // namespace lora_train::storage
