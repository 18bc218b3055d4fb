#include <nlohmann/json.hpp>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/folder.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::storage {
namespace {

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
    const std::string where = where_ + ": " + key_;
    // Checks the name only: files of the Hub cache are links to other folders.
    if (const char* reason = why_not_file_name(file)) {
      const std::string shown = nlohmann::json(file).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
      reject(where,
             "weight_map names " + shown + ", which " + reason + "; a plain file name beside the index was expected");
    }
    if (!file.ends_with(".safetensors")) {
      reject(where, "weight_map names \"" + file + "\"; a .safetensors file was expected");
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
    reject(where_, "not valid JSON at byte " + std::to_string(position));
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
    if (depth_ == 0) reject(where_, std::string("the index is ") + what + "; an object with weight_map was expected");
    if (depth_ == 1 && in_map_) reject(where_, std::string("weight_map is ") + what + "; an object was expected");
    if (in_entry())
      reject(where_ + ": " + key_, std::string("weight_map gives ") + what + "; a file name was expected");
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

}  // namespace

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

}  // namespace lora_train::storage
