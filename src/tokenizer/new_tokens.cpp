#include "new_tokens.h"

#include <optional>

#include "lora_train/storage/model_file.h"

namespace lora_train::tokenizer {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kDecoderKey = "added_tokens_decoder";
constexpr const char* kOldFile = "added_tokens.json";

constexpr std::string_view kSpaces = " \t\r\n";

/// The end of the string that begins at `begin`, behind its quote.
std::size_t string_end(std::string_view json, std::size_t begin) {
  std::size_t at = begin + 1;
  while (json[at] != '"') at += json[at] == '\\' ? 2 : 1;
  return at + 1;
}

/// The end of the array or object that begins at `begin`.
std::size_t container_end(std::string_view json, std::size_t begin) {
  int depth = 0;
  for (std::size_t at = begin;;) {
    const char c = json[at];
    if (c == '"') {
      at = string_end(json, at);
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && --depth == 0) return at + 1;
    ++at;
  }
}

/// Where the value of a member of the outermost object begins.
std::optional<std::size_t> member_begin(std::string_view json, std::string_view key) {
  for (std::size_t at = json.find('{') + 1; at < json.size();) {
    const char c = json[at];
    if (c == '[' || c == '{') {
      at = container_end(json, at);
    } else if (c == '"') {
      const std::size_t end = string_end(json, at), next = json.find_first_not_of(kSpaces, end);
      const bool is_key = next != std::string_view::npos && json[next] == ':';
      if (is_key && json.substr(at + 1, end - at - 2) == key) return json.find_first_not_of(kSpaces, next + 1);
      at = end;
    } else {
      ++at;
    }
  }
  return std::nullopt;
}

OrderedJson flags_of(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},   {"normalized", token.normalized},   {"special", token.special}};
}

/// The elements of an array, indented as tokenizers writes them.
std::string entries(const std::vector<AddedToken>& tokens) {
  OrderedJson list = OrderedJson::array();
  for (const AddedToken& token : tokens) {
    OrderedJson entry = {{"id", token.id}};
    entry.update(flags_of(token));
    list.push_back(std::move(entry));
  }
  const std::string text = OrderedJson({{"added_tokens", list}}).dump(2);
  const std::size_t begin = text.find('['), end = text.rfind(']');
  return text.substr(begin + 1, text.find_last_not_of(kSpaces, end - 1) - begin);
}

}  // namespace

std::string with_added_tokens(std::string_view json, const std::vector<AddedToken>& tokens) {
  const std::string added = entries(tokens), list = "[" + added + "\n  ]";
  const auto found = member_begin(json, "added_tokens");
  std::string text(json);
  if (!found) return text.insert(json.find('{') + 1, "\n  \"added_tokens\": " + list + ",");
  if (json[*found] != '[') return text.replace(*found, std::string_view("null").size(), list);
  const std::size_t end = container_end(json, *found), last = json.find_last_not_of(kSpaces, end - 2);
  if (last == *found) return text.replace(*found, end - *found, list);
  return text.insert(last + 1, "," + added);
}

std::map<std::string, std::string> files_with_new_tokens(const fs::path& folder, const std::string& main_file,
                                                         std::string_view bytes,
                                                         const std::vector<AddedToken>& tokens) {
  std::map<std::string, std::string> files;
  const bool is_json = main_file == "tokenizer.json";
  if (is_json) files[main_file] = with_added_tokens(bytes, tokens);
  const auto read = [&](const char* name) {
    return fs::exists(folder / name) ? OrderedJson::parse(storage::read_model_file(folder / name))
                                     : OrderedJson::object();
  };
  OrderedJson config = read(kConfigFile), old = read(kOldFile);
  const bool has_decoder = config.contains(kDecoderKey) && config[kDecoderKey].is_object();
  if (has_decoder || (!is_json && old.empty())) {
    for (const AddedToken& token : tokens) config[kDecoderKey][std::to_string(token.id)] = flags_of(token);
    files[kConfigFile] = config.dump(2) + "\n";
  }
  if (!old.empty()) {
    for (const AddedToken& token : tokens) old[token.content] = token.id;
    files[kOldFile] = old.dump(2) + "\n";
  }
  return files;
}

}  // namespace lora_train::tokenizer
