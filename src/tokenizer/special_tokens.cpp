#include "special_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "split/gpt_split.h"

namespace lora_train::tokenizer {
namespace {

bool is_white_space(std::uint32_t code) {
  const CharClass found = CharClasses::instance().of(code);
  return found == CharClass::kSpace || found == CharClass::kNewline;
}

// Unicode's \w: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word(std::uint32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC ||
         code == 0x200C || code == 0x200D;
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  const bool before = begin > 0 && is_word(utf8_char(text, char_begin_before(text, begin)).code_point);
  const bool behind = end < text.size() && is_word(utf8_char(text, end).code_point);
  return before || behind;
}

std::size_t strip_left(std::string_view text, std::size_t begin, std::size_t limit) {
  while (begin > limit) {
    const std::size_t previous = char_begin_before(text, begin);
    if (!is_white_space(utf8_char(text, previous).code_point)) break;
    begin = previous;
  }
  return begin;
}

std::size_t strip_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    const Utf8Char c = utf8_char(text, end);
    if (!is_white_space(c.code_point)) break;
    end += c.length;
  }
  return end;
}

// transformers' SPECIAL_TOKENS_ATTRIBUTES: new tokens get their ids in this order, before all others.
constexpr std::string_view kStandardKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};

bool is_standard(std::string_view key) { return std::ranges::count(kStandardKeys, key) > 0; }

// A token is written as a string or as an added-token object.
AddedToken special_token(const JsonPlace& place) {
  if (place.value().is_object()) return read_added_token(place, 0);
  return {.content = place.string(), .normalized = false, .special = true, .where = place.where()};
}

void name_token(const std::string& key, const JsonPlace& place, SpecialTokens& out) {
  AddedToken token = place.is_null() ? AddedToken() : special_token(place);
  token.special = true;
  out.named[key] = place.is_null() ? std::nullopt : std::optional(token.content);
  if (!out.has_decoder) out.by_key[key] = std::move(token);
}

void read_named(const JsonPlace& root, SpecialTokens& out) {
  if (!root.value().is_object()) root.fail("expected an object");
  for (const auto& [key, value] : root.value().items()) {
    const bool is_token = key.ends_with("_token") && !key.starts_with("add_") && !value.is_boolean();
    const bool is_taken = out.named.contains(key) && (out.has_decoder || !is_standard(key));
    if (is_token && !is_taken) name_token(key, root.at(key), out);
  }
}

void read_added(const JsonPlace& place, SpecialTokens& out) {
  if (!place.value().is_object()) place.fail("expected an object");
  for (const auto& [key, value] : place.value().items()) {
    const auto id = whole_number<std::int32_t>(key);
    if (!id || *id < 0 || *id >= (1 << 24)) place.fail(fmt::format("\"{}\" is not a token id", key));
    out.added.push_back(read_added_token(place.at(key), *id));
  }
}

// A list of tokens, or an object of name: token.
void read_extra(const JsonPlace& list, SpecialTokens& out) {
  if (list.value().is_object()) {
    for (const auto& [name, value] : list.value().items()) name_token(name, list.at(name), out);
    return out.extra.reset();
  }
  if (!out.extra) out.extra.emplace();
  if (list.is_null()) return;
  for (const JsonPlace& token : list.elements()) out.extra->push_back(special_token(token));
}

// tokenizer_config.json, then special_tokens_map.json, which transformers only reads without an added_tokens_decoder.
void read_token_map(const JsonPlace& root, SpecialTokens& out, bool is_config) {
  read_named(root, out);
  if (out.has_decoder) return;
  const bool has_extra = root.value().contains("extra_special_tokens");
  if (has_extra) read_extra(root.at("extra_special_tokens"), out);
  const bool is_taken = is_config ? has_extra : out.extra.has_value();
  const std::string old = "additional_special_tokens";
  if (!is_taken && root.value().contains(old)) read_extra(root.at(old), out);
}

// {token: id}, which transformers wrote before added_tokens_decoder.
void read_added_tokens_file(const JsonPlace& root, SpecialTokens& out) {
  if (!root.value().is_object()) root.fail("expected an object of token: id");
  const auto names = out.in_text();
  for (const auto& [content, value] : root.value().items()) {
    const JsonPlace place = root.at(content);
    const bool special =
        std::ranges::any_of(names, [&wanted = content](const auto& name) { return name.second.content == wanted; });
    out.added.push_back(
        {.id = place.id(), .content = content, .normalized = !special, .special = special, .where = place.where()});
  }
}

void read_tokenizer_config(const JsonPlace& root, SpecialTokens& out) {
  read_token_map(root, out, true);
  out.has_decoder = root.value().contains("added_tokens_decoder");
  if (const auto add_bos = root.find("add_bos_token")) out.add_bos_token = add_bos->boolean();
  out.legacy = root.boolean_or("legacy", true);
  if (const auto added = root.find("added_tokens_decoder")) read_added(*added, out);
}

void read_generation_config(const JsonPlace& root, SpecialTokens& out) {
  const auto eos = root.find("eos_token_id");
  if (!eos) return;
  if (!eos->value().is_array()) {
    out.generation_eos_ids.push_back(eos->id());
    return;
  }
  for (const JsonPlace& id : eos->elements()) out.generation_eos_ids.push_back(id.id());
}

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kDecoderKey = "added_tokens_decoder";
constexpr const char* kOldFile = "added_tokens.json";

constexpr std::string_view kSpaces = " \t\r\n";

/// Empty without the file.
OrderedJson read_json_object(const fs::path& file) {
  return fs::exists(file) ? OrderedJson::parse(storage::read_model_file(file)) : OrderedJson::object();
}

/// The end of the string, array or object that begins at `at`, or of one other character.
std::size_t value_end(std::string_view json, std::size_t at) {
  int depth = 0;
  do {
    const char c = json[at];
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == '"') {
      while (json[++at] != '"') at += json[at] == '\\' ? 1 : 0;
    }
    ++at;
  } while (depth > 0);
  return at;
}

/// Start of a member's value in the outermost object.
std::optional<std::size_t> member_begin(std::string_view json, std::string_view key_in_quotes) {
  for (std::size_t at = json.find('{') + 1, end = at; at < json.size(); at = end) {
    end = value_end(json, at);
    if (json.substr(at, end - at) != key_in_quotes) continue;
    const std::size_t colon = json.find_first_not_of(kSpaces, end);
    if (json[colon] == ':') return json.find_first_not_of(kSpaces, colon + 1);
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

/// tokenizer.json with entries appended to added_tokens; everything else stays byte for byte.
std::string with_added_tokens(std::string_view json, const std::vector<AddedToken>& tokens) {
  const std::string added = entries(tokens), list = fmt::format("[{}\n  ]", added);
  const auto found = member_begin(json, "\"added_tokens\"");
  std::string text(json);
  if (!found) return text.insert(json.find('{') + 1, fmt::format("\n  \"added_tokens\": {},", list));
  if (json[*found] != '[') return text.replace(*found, std::string_view("null").size(), list);
  const std::size_t end = value_end(json, *found), last = json.find_last_not_of(kSpaces, end - 2);
  if (last == *found) return text.replace(*found, end - *found, list);
  return text.insert(last + 1, "," + added);
}

}  // namespace

AddedToken read_added_token(const JsonPlace& place, std::int32_t id) {
  place.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"});
  AddedToken token{.id = id, .content = place.at("content").string(), .where = place.where()};
  token.special = place.boolean_or("special", false);
  token.single_word = place.boolean_or("single_word", false);
  token.lstrip = place.boolean_or("lstrip", false);
  token.rstrip = place.boolean_or("rstrip", false);
  token.normalized = place.boolean_or("normalized", !token.special);
  return token;
}

void AddedTokenMatcher::add(const AddedToken& token, const std::string& spelling) {
  if (spelling.empty()) return;
  first_byte_[static_cast<unsigned char>(spelling.front())] = true;
  std::size_t node = 0;
  for (const char c : spelling) {
    const auto [next, is_new] = nodes_[node].next.try_emplace(c, nodes_.size());
    node = next->second;
    if (is_new) nodes_.emplace_back();
  }
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::int32_t AddedTokenMatcher::longest_at(std::string_view text, std::size_t at, std::size_t& end) const {
  std::int32_t best = -1;
  std::size_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto found = nodes_[node].next.find(text[i]);
    if (found == nodes_[node].next.end()) break;
    node = found->second;
    if (nodes_[node].token < 0) continue;
    best = nodes_[node].token;
    end = i + 1;
  }
  return best;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  StopPoll stop_poll;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    stop_poll();
    std::size_t match_end = 0;
    const std::int32_t index = first_byte_[static_cast<unsigned char>(text[at])] ? longest_at(text, at, match_end) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    const std::size_t match_begin = at;
    at = match_end;  // a token refused below is not searched inside, as in Hugging Face's matcher
    if (token.single_word && touches_word(text, match_begin, match_end)) continue;
    // A token inside white space that the previous one took still counts, as in Hugging Face's matcher.
    const bool overlaps = match_begin < done;
    const std::size_t begin = token.lstrip && !overlaps ? strip_left(text, match_begin, done) : match_begin;
    const std::size_t end = token.rstrip ? strip_right(text, match_end) : match_end;
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

std::optional<std::string> SpecialTokens::name(const std::string& key) const {
  const auto found = named.find(key);
  return found == named.end() ? std::nullopt : found->second;
}

std::vector<std::pair<std::string, AddedToken>> SpecialTokens::in_text() const {
  std::vector<std::pair<std::string, AddedToken>> tokens;
  for (const std::string_view key : kStandardKeys) {
    if (const auto found = by_key.find(std::string(key)); found != by_key.end()) tokens.emplace_back(*found);
  }
  std::ranges::copy_if(by_key, std::back_inserter(tokens), [](const auto& each) { return !is_standard(each.first); });
  for (const AddedToken& token : extra.value_or(std::vector<AddedToken>())) tokens.emplace_back("", token);
  return tokens;
}

SpecialTokens read_special_tokens(const std::filesystem::path& folder) {
  SpecialTokens out;
  const auto read = [&](const char* file, void (*use)(const JsonPlace&, SpecialTokens&)) {
    const std::filesystem::path path = folder / file;
    if (!std::filesystem::exists(path)) return;
    const std::string bytes = storage::read_model_file(path);
    const Json json = parse_json(bytes, path.string());
    use(JsonPlace(json, path.string()), out);
    out.bytes += bytes;
    out.bytes += '\0';
  };
  read("tokenizer_config.json", read_tokenizer_config);
  read("special_tokens_map.json", [](const JsonPlace& root, SpecialTokens& to) { read_token_map(root, to, false); });
  if (!out.has_decoder) read("added_tokens.json", read_added_tokens_file);
  std::ranges::stable_sort(out.added, {}, &AddedToken::id);
  read("generation_config.json", read_generation_config);
  if (const auto config = folder / "config.json"; std::filesystem::exists(config)) {  // does not affect ids
    const Json json = parse_json_file(config);
    const JsonPlace root(json, config.string());
    out.model_type = root.string_or("model_type", "");
    const auto text = root.find("text_config");
    const auto size = (text ? *text : root).find("vocab_size");
    if (size && std::filesystem::exists(folder / "tokenizer.json")) out.num_rows = size->integer();
  }
  return out;
}

const std::string& FileTokenizer::spelling(std::int32_t id) const {
  static const std::string none;
  const auto index = static_cast<std::size_t>(id);
  return id >= 0 && index < spellings_.size() ? spellings_[index] : none;
}

void FileTokenizer::set_token(std::int32_t id, const std::string& token) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= spellings_.size()) spellings_.resize(index + 1);
  spellings_[index] = token;
  ids_.try_emplace(token, id);
}

std::int32_t FileTokenizer::next_added_id() const {
  std::int32_t next = num_model_tokens_;
  for (const std::int32_t id : added_) next = std::max(next, id + 1);
  return next;
}

void FileTokenizer::add_side_tokens(const SpecialTokens& special, const TokenizerOptions& options) {
  const std::unordered_set<std::int32_t> own = added_;
  const auto add_beside = [&](const AddedToken& token, bool is_new) {
    const std::int32_t next = next_added_id();
    add(token, options);
    if (!is_new) return;
    if (token.id != next) {
      throw FormatError(token.where, "transformers gives added token \"{}\" the next free id, {}; write that, not {}",
                        token.content, next, token.id);
    }
    if (special.num_rows && token.id >= *special.num_rows) {
      throw FormatError(
          token.where,
          "\"{}\" is new, and the model has no row for its id, {} (vocab_size is {}); remove it, and name "
          "it in add_tokens if you need it",
          token.content, token.id, *special.num_rows);
    }
    side_tokens_.push_back(token);
  };
  for (const AddedToken& token : special.added) {
    const auto known = token_to_id(token.content);
    if (!known || !own.contains(*known)) add_beside(token, !known);
  }
  bool has_unordered = false;
  for (auto& [key, token] : special.in_text()) {
    const auto known = token_to_id(token.content);
    if (token.content.empty() || (known && added_.contains(*known))) continue;
    if (token.lstrip || token.rstrip || token.single_word) {
      throw FormatError(token.where,
                        "lstrip, rstrip and single_word of \"{}\" depend on tokenizer_class; name it without them",
                        token.content);
    }
    if (!known && !key.empty() && !is_standard(key) && std::exchange(has_unordered, true)) {
      throw FormatError(token.where, "\"{}\" is the second new token with a name; list both in extra_special_tokens",
                        token.content);
    }
    token.id = known.value_or(next_added_id());
    add_beside(token, !known);
  }
}

void FileTokenizer::add(const AddedToken& token, const TokenizerOptions& options) {
  const std::string& where = token.where;
  const std::string& taken = spelling(token.id);
  if (!taken.empty() && taken != token.content) {
    throw FormatError(where, "id {} of added token \"{}\" already belongs to \"{}\"", token.id, token.content, taken);
  }
  if (const std::int32_t known = token_to_id(token.content).value_or(token.id); known != token.id) {
    throw FormatError(where, "added token \"{}\" has id {} here, but already has id {}", token.content, token.id,
                      known);
  }
  if (static_cast<std::size_t>(token.id) >= spellings_.size() + kMaxUnusedIds) {
    throw FormatError(where, "id {} of added token \"{}\" is far above the {} tokens", token.id, token.content,
                      spellings_.size());
  }
  set_token(token.id, token.content);
  added_.insert(token.id);
  if (token.special) special_.insert(token.id);
  if (!token.special || options.special_tokens_in_text) find_in_texts(token);
}

void Tokenizer::apply_special_tokens(const SpecialTokens& special_tokens) {
  const auto set = [&](const char* key, std::optional<std::int32_t>& id) {
    if (!special_tokens.named.contains(key)) return;
    const auto name = special_tokens.name(key);
    id = name ? token_to_id(*name) : std::nullopt;
    if (!name || id) return;
    throw FormatError("tokenizer_config.json or special_tokens_map.json: " + std::string(key),
                      "\"{}\" is not in the vocabulary; name a token that is, or null", *name);
  };
  generation_eos_ids_ = special_tokens.generation_eos_ids;
  if (!eos_id_ && !generation_eos_ids_.empty()) eos_id_ = generation_eos_ids_.front();
  set("bos_token", bos_id_);
  set("eos_token", eos_id_);
  set("pad_token", pad_id_);
  adds_bos_ = special_tokens.add_bos_token.value_or(adds_bos_) && bos_id_.has_value();
}

std::string config_with_names(const fs::path& folder, const SpecialTokens& special_tokens) {
  OrderedJson config = read_json_object(folder / kConfigFile);
  for (const auto& [key, token] : special_tokens.named) {
    if (token && !config.contains(key)) config[key] = *token;
  }
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

std::map<std::string, std::string> files_with_new_tokens(const fs::path& folder, const std::string& main_file,
                                                         std::string_view bytes,
                                                         const std::vector<AddedToken>& tokens) {
  std::map<std::string, std::string> files;
  const bool is_json = main_file == "tokenizer.json";
  if (is_json) files[main_file] = with_added_tokens(bytes, tokens);
  OrderedJson config = read_json_object(folder / kConfigFile), old = read_json_object(folder / kOldFile);
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
