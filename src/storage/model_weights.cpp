#include "lora_train/storage/model_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// True if the file exists. Throws for a link without a target, which an interrupted Hub download leaves.
bool is_present(const fs::path& path) {
  std::error_code code;  // a link to itself, a name that is too long: not there
  if (fs::exists(path, code)) return true;
  if (fs::is_symlink(path, code)) {
    throw FormatError(path.string(), "links to \"{}\", which does not exist: the download is incomplete; run it again",
                      fs::read_symlink(path).string());
  }
  return false;
}

/// Explains what the folder holds instead of readable weights, and what to do.
[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string expected = fmt::format("no {} and no {} here", kWeightsFile, kIndexFile);
  for (const auto& name : list_folder(folder)) {
    if (name == kAdapterFile) {
      throw FormatError(folder.string(),
                        expected +
                            ", but a LoRA adapter: give the folder of its base model (base_model_name_or_path in "
                            "adapter_config.json)");
    }
    if (name.ends_with(".safetensors")) {
      throw FormatError(folder.string(), expected + ", but \"" + name +
                                             "\": the Hugging Face layout is needed, with the " +
                                             "index file when there are several parts; download the whole repository");
    }
  }
  for (const auto& name : list_folder(folder)) {
    for (const char* pickle : {".bin", ".pt", ".pth", ".ckpt", ".pkl"}) {
      if (!name.ends_with(pickle)) continue;
      throw FormatError((folder / name).string(),
                        "is a pickle checkpoint, which can run code when opened and is never read; convert it to "
                        "safetensors: python -c \"from transformers import AutoModelForCausalLM as M; "
                        "M.from_pretrained('{}').save_pretrained('{}-safetensors')\"",
                        folder.string(), folder.string());
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
    throw FormatError(index.path.string(), "{} of the {} files named are not in the folder ({}{}): download them",
                      count, names.size(), join(missing), count > kNamed ? ", ..." : "");
  }
  std::vector<SafetensorsFile> files;
  for (const auto& name : names) files.emplace_back(folder / name);
  return files;
}

void check_index(const ShardIndex& index, const WeightFiles& weights) {
  for (const auto& [tensor, name] : index.file_of) {
    const auto* entry = weights.find(tensor);
    if (entry == nullptr || weights.files()[entry->file].path().filename() != name) {
      throw FormatError(fmt::format("{}: {}", index.path.string(), tensor),
                        "the index says \"" + name + "\", but " +
                            (entry == nullptr ? "no file of the folder"
                                              : "only " + weights.files()[entry->file].path().filename().string()) +
                            " holds that tensor: index and files do not match, download them again");
    }
  }
}

[[noreturn]] void refuse_index(const std::string& where, const std::string& what) {
  throw FormatError(where, what + ": download or save the model again");
}

/// What is wrong with a value: "weight_map is a number; an object was expected".
[[noreturn]] void refuse_value(const std::string& where, const std::string& owner, const std::string& what,
                               const char* expected) {
  refuse_index(where, fmt::format("{} {}; {} was expected", owner, what, expected));
}

/// Refuses a repeated weight_map, a tensor that is in it twice, and lists and maps where none belong. Keeps only
/// weight_map: the parser looks through what is kept of the parent after each list or map in it, so that a file of
/// thousands of them would take quadratic time.
json parse_index(const std::string& text, const std::string& where) {
  std::set<std::string> tensors;
  std::string name;
  bool in_map = false, has_map = false;
  const auto look = [&](int depth, json::parse_event_t event, const json& key) {
    const bool is_array = event == json::parse_event_t::array_start;
    if (depth == 0 && is_array) refuse_value(where, "the index is", "an array", "an object with weight_map");
    if (depth == 1 && in_map && is_array) refuse_value(where, "weight_map is", "an array", "an object");
    if (depth == 2 && in_map && (is_array || event == json::parse_event_t::object_start))
      refuse_value(fmt::format("{}: {}", where, name), "weight_map gives", is_array ? "an array" : "an object",
                   "a file name");
    if (event != json::parse_event_t::key) return true;
    name = key.get_ref<const std::string&>();
    if (depth == 1) in_map = name == "weight_map";
    if (depth == 1 && in_map && std::exchange(has_map, true)) refuse_index(where, "weight_map appears twice");
    if (depth == 2 && in_map && !tensors.insert(name).second)
      refuse_index(fmt::format("{}: {}", where, name), "the tensor appears twice in weight_map");
    return in_map;
  };
  try {
    return json::parse(text, look);
  } catch (const json::parse_error& error) {
    refuse_index(where, fmt::format("not valid JSON at byte {}", error.byte));
  } catch (const json::exception&) {
    refuse_index(where, "holds a number that is too large");
  }
}

/// "a number", "null"; lists and maps are refused before.
std::string kind_of(const json& value) { return (value.is_null() ? "" : "a ") + std::string(value.type_name()); }

/// A name that weight_map gives. Checks the name only: files of the Hub cache are links to other folders.
std::string file_name(const json& value, const std::string& where) {
  if (!value.is_string()) refuse_value(where, "weight_map gives", kind_of(value), "a file name");
  const auto& file = value.get_ref<const std::string&>();
  if (const char* reason = why_not_file_name(file)) {
    refuse_index(where, fmt::format("weight_map names {}, which {}; a plain file name next to the index was expected",
                                    value.dump(-1, ' ', true, json::error_handler_t::replace), reason));
  }
  if (!file.ends_with(".safetensors"))
    refuse_index(where, fmt::format("weight_map names \"{}\"; a .safetensors file was expected", file));
  return file;
}

/// The only tensor outside the parts beside the text whose name has this end, or null.
const TensorEntry* only_one(const WeightFiles& weights, std::string_view end) {
  const TensorEntry* found = nullptr;
  for (const auto& [name, entry] : weights.entries()) {
    const bool is_it = name == end || name.ends_with(fmt::format(".{}", end));
    if (!is_it || !part_beside_text(name).empty()) continue;
    if (found != nullptr) {
      throw FormatError(weights.where(entry),
                        "{} is there as well, so that the text model is not known: one {} was expected", found->name,
                        end);
    }
    found = &entry;
  }
  return found;
}

/// The prefix of the text model's tensors is what stands before its only embedding: config.json does not tell.
WeightFiles with_text_names(WeightFiles weights) {
  constexpr std::string_view kEmbedding = "embed_tokens.weight", kHead = "lm_head.weight", kModel = "model.";
  const TensorEntry *const embedding = only_one(weights, kEmbedding), *const head = only_one(weights, kHead);
  if (embedding == nullptr) return weights;
  const std::string prefix = embedding->name.substr(0, embedding->name.size() - kEmbedding.size());
  const std::string head_name = head == nullptr ? "" : head->name;
  if (prefix == kModel && (head_name.empty() || head_name == kHead)) return weights;
  weights.rename([&](const std::string& name) {
    if (name == head_name) return std::string(kHead);
    const bool is_text = name.starts_with(prefix) && part_beside_text(name).empty();
    return is_text ? fmt::format("{}{}", kModel, name.substr(prefix.size())) : name;
  });
  return weights;
}

constexpr std::int64_t kPieceBytes = 16 << 20;

/// Follows links: a Hub snapshot consists of them.
std::vector<std::pair<fs::path, std::int64_t>> weight_files(const fs::path& folder) {
  std::vector<std::pair<fs::path, std::int64_t>> files;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    std::error_code unusable;
    if (at->path().extension() != ".safetensors" || !at->is_regular_file(unusable)) continue;
    const auto bytes = static_cast<std::int64_t>(at->file_size(unusable));
    if (!unusable) files.emplace_back(at->path(), bytes);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

WeightFiles::WeightFiles(std::vector<SafetensorsFile> files) : files_(std::move(files)) {
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    for (TensorEntry entry : files_[i].tensors()) {
      entry.file = i;
      const auto [at, is_new] = entries_.emplace(entry.name, entry);
      if (!is_new) {
        throw FormatError(where(entry), "the tensor is also in {}; only one file may hold it: download the model again",
                          files_[at->second.file].path().filename().string());
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
  return fmt::format("{}: {}", files_.at(entry.file).path().string(), entry.name);
}

std::string WeightFiles::fingerprint() const {
  constexpr std::size_t kSample = 4096;
  Hasher hasher;
  for (const auto& [name, entry] : entries_) {
    if (!part_beside_text(entry.name).empty()) continue;
    throw_if_stop_requested();
    hasher.update(fmt::format("{} {}\n", name, describe(entry)));
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

void WeightFiles::rename(const std::function<std::string(const std::string&)>& name_of) {
  std::map<std::string, TensorEntry, std::less<>> renamed;
  for (auto& [old_name, entry] : entries_) {
    const auto [at, is_new] = renamed.try_emplace(name_of(entry.name), entry);
    if (!is_new)
      throw FormatError(where(entry), "is the same tensor of the text model as {}: only one of them may be there",
                        at->second.name);
  }
  entries_ = std::move(renamed);
}

std::string part_beside_text(std::string_view name) {
  constexpr std::string_view kModel = "model.";
  for (const std::string_view part : {"vision_tower", "visual", "multi_modal_projector", "audio_tower", "mtp"}) {
    for (const std::string_view before : {std::string_view(), kModel}) {
      const std::string start = fmt::format("{}{}.", before, part);
      if (name.starts_with(start)) return std::string(part);
    }
  }
  return {};
}

bool holds_model_weights(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / kWeightsFile, code) || fs::exists(folder / kIndexFile, code);
}

WeightFiles open_model_weights(const std::filesystem::path& folder, bool warns) {
  if (!fs::is_directory(folder))
    throw FormatError(folder.string(), "no such folder; expected a Hugging Face model folder");
  const bool has_index = is_present(folder / kIndexFile);
  if (is_present(folder / kWeightsFile)) {
    if (has_index && warns)
      log_warning("{}: holds both {} and {}; the index is not used", folder.string(), kWeightsFile, kIndexFile);
    return with_text_names(WeightFiles({SafetensorsFile(folder / kWeightsFile)}));
  }
  if (!has_index) refuse_folder(folder);

  const ShardIndex index = read_shard_index(folder / kIndexFile);
  WeightFiles weights(open_shards(folder, index));
  check_index(index, weights);
  std::vector<std::string> stray = weights.names();
  std::erase_if(stray, [&](const std::string& name) { return index.file_of.contains(name); });
  if (!stray.empty() && warns) {
    log_warning("{}: {} tensors in the files are not in the index and are ignored (first: \"{}\")", index.path.string(),
                stray.size(), stray.front());
  }
  weights.drop(stray);
  return with_text_names(std::move(weights));
}

std::vector<std::string> ShardIndex::files() const {
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  return {names.begin(), names.end()};
}

ShardIndex read_shard_index(const std::filesystem::path& path) {
  const std::string where = path.string();
  const json index = parse_index(read_model_text(path), where);
  if (!index.is_object()) refuse_value(where, "the index is", kind_of(index), "an object with weight_map");
  const json files = index.value("weight_map", json::object());
  if (!files.is_object()) refuse_value(where, "weight_map is", kind_of(files), "an object");
  if (files.empty()) refuse_index(where, "the index has no weight_map with at least one tensor");
  ShardIndex result{path, {}};
  for (const auto& [tensor, file] : files.items())
    result.file_of.emplace(tensor, file_name(file, fmt::format("{}: {}", where, tensor)));
  return result;
}

ReadAhead::ReadAhead(const fs::path& folder, std::int64_t most_bytes) {
  const auto files = weight_files(folder);
  std::int64_t sum = 0;
  for (const auto& [path, bytes] : files) sum += bytes;
  if (sum == 0 || sum > most_bytes) return;
  try {
    thread_ = std::thread([this, files] {
      for (const auto& [path, bytes] : files) {
        const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        for (std::int64_t begin = 0; file.is_open() && begin < bytes && !is_stopped_; begin += kPieceBytes) {
          const std::int64_t count = std::min(kPieceBytes, bytes - begin);
          if (::posix_fadvise(file.get(), begin, count, POSIX_FADV_WILLNEED) == 0) asked_bytes_ += count;
        }
      }
    });
  } catch (const std::system_error&) {  // no thread available: the files are read later
  }
}

ReadAhead::~ReadAhead() {
  is_stopped_ = true;
  wait();
}

std::int64_t ReadAhead::wait() {
  if (thread_.joinable()) thread_.join();
  return asked_bytes_;
}

}  // namespace lora_train::storage
