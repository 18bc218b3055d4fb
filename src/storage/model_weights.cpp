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

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Explains what the folder holds instead of readable weights, and what to do.
[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string expected = fmt::format("no {} and no {} here", kWeightsFile, kIndexFile);
  for (const auto& name : files_in(folder)) {
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
  for (const auto& name : files_in(folder)) {
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

/// Follows {"metadata": anything, "weight_map": {tensor: file}}; other keys are skipped.
class IndexHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexHandler(ShardIndex& index) : index_(index), where_(index.path.string()) {}

  bool has_map() const { return has_map_; }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && has_map_) reject(where_, "weight_map appears twice");
    }
    if (depth_ == 2 && in_map_) key_ = name;
    return true;
  }
  bool string(string_t& file) override {
    if (!in_entry()) return value("a string");
    const std::string where = fmt::format("{}: {}", where_, key_);
    // Checks the name only: files of the Hub cache are links to other folders.
    if (const char* reason = why_not_file_name(file)) {
      const std::string shown = nlohmann::json(file).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
      reject(where, fmt::format("weight_map names {}, which {}; a plain file name next to the index was expected",
                                shown, reason));
    }
    if (!file.ends_with(".safetensors")) {
      reject(where, fmt::format("weight_map names \"{}\"; a .safetensors file was expected", file));
    }
    if (!index_.file_of.emplace(key_, file).second) reject(where, "the tensor appears twice in weight_map");
    return true;
  }
  bool start_object(std::size_t) override {
    value("an object", depth_ == 0 || (depth_ == 1 && in_map_));
    if (depth_ == 1 && in_map_) has_map_ = true;
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    value("an array");
    ++depth_;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    reject(where_, fmt::format("not valid JSON at byte {}", position));
  }

 private:
  bool in_entry() const { return depth_ == 2 && in_map_; }
  bool close() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  /// A value that is not the file name of an entry.
  bool value(const char* what, bool expected = false) const {
    if (expected) return true;
    if (depth_ == 0) reject(where_, fmt::format("the index is {}; an object with weight_map was expected", what));
    if (depth_ == 1 && in_map_) reject(where_, fmt::format("weight_map is {}; an object was expected", what));
    if (in_entry()) reject(where_ + ": " + key_, fmt::format("weight_map gives {}; a file name was expected", what));
    return true;
  }
  [[noreturn]] static void reject(const std::string& where, const std::string& what) {
    throw FormatError(where, what + ": download or save the model again");
  }

  ShardIndex& index_;
  std::string where_, key_;
  int depth_ = 0;
  bool in_map_ = false, has_map_ = false;
};

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

WeightFiles open_model_weights(const std::filesystem::path& folder) {
  if (!fs::is_directory(folder))
    throw FormatError(folder.string(), "no such folder; expected a Hugging Face model folder");
  const bool has_index = is_present(folder / kIndexFile);
  if (is_present(folder / kWeightsFile)) {
    if (has_index)
      log_warning("{}: holds both {} and {}; the index is not used", folder.string(), kWeightsFile, kIndexFile);
    return WeightFiles({SafetensorsFile(folder / kWeightsFile)});
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
    log_warning("{}: {} tensors in the files are not in the index and are ignored (first: \"{}\")", index.path.string(),
                stray.size(), stray.front());
    weights.drop(stray);
  }
  return weights;
}

std::vector<std::string> ShardIndex::files() const {
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  return {names.begin(), names.end()};
}

ShardIndex read_shard_index(const std::filesystem::path& path) {
  ShardIndex index;
  index.path = path;
  const std::string text = read_model_text(path);
  IndexHandler handler(index);
  nlohmann::json::sax_parse(text, &handler);
  if (!handler.has_map() || index.file_of.empty()) {
    throw FormatError(path.string(),
                      "the index has no weight_map with at least one tensor: download or save the model again");
  }
  return index;
}

ReadAhead::ReadAhead(const fs::path& folder, std::int64_t most_bytes) {
  const auto files = weight_files(folder);
  std::int64_t sum = 0;
  for (const auto& [path, bytes] : files) sum += bytes;
  if (sum == 0 || sum > most_bytes) return;
  try {
    thread_ = std::thread([this, files] {
      for (const auto& [path, bytes] : files) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) continue;
        for (std::int64_t begin = 0; begin < bytes && !is_stopped_; begin += kPieceBytes) {
          const std::int64_t count = std::min(kPieceBytes, bytes - begin);
          if (::posix_fadvise(fd, begin, count, POSIX_FADV_WILLNEED) == 0) asked_bytes_ += count;
        }
        ::close(fd);
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
