#include <iterator>
#include <sstream>
#include <unordered_set>

#include "json/bpe_model.h"
#include "json/json_place.h"
#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"
#include "lora_train/storage/model_file.h"
#include "special_tokens.h"
#include "tokenizer_files.h"

namespace lora_train::tokenizer {
namespace {

struct TekkenFile {
  std::string pattern;                      // splits text into pieces
  std::vector<std::string> special_tokens;  // ids 0, 1, ...; those without a name in the file are <SPECIAL_id>
  std::vector<std::string> tokens;          // bytes, by rank; id = rank + special_tokens.size()
};

class TekkenTokenizer final : public BpeTokenizer {
 public:
  TekkenTokenizer(const TekkenFile& tekken, const std::string& file, const SpecialTokens& special,
                  const TokenizerOptions& options)
      : BpeTokenizer(PreTokenizer(tekken.pattern, file + ": config.pattern"), tekken.tokens,
                     static_cast<std::int32_t>(tekken.special_tokens.size())) {
    std::int32_t next = 0;
    for (const std::string& token : tekken.special_tokens) {
      if (options.special_tokens_in_text) in_text_.add({next, token}, token);
      special_.insert(next);
      set_token(next++, token);
    }
    bos_id_ = token_to_id("<s>");
    eos_id_ = token_to_id("</s>");
    pad_id_ = token_to_id("<pad>");
    adds_bos_ = bos_id_.has_value();
    for (const std::string& token : tekken.tokens) set_token(next++, token);
    apply_special_tokens(special);
  }

  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;
};

std::string TekkenTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text, bytes;  // bytes: from the tokens since the last special one
  for (const std::int32_t id : ids) {
    if (!is_special(id)) {
      bytes += spelling(id);
      continue;
    }
    text += repair_utf8(bytes);
    bytes.clear();
    if (!skip_special) text += spelling(id);
  }
  return text + repair_utf8(bytes);
}

constexpr std::size_t kMaxTokenBytes = 512;  // real tokens are far shorter; bounds the work for a bad file

// True for versions that may leave the special tokens to the reader.
constexpr std::pair<const char*, bool> kVersions[] = {
    {"v3", true}, {"v7", true}, {"v11", false}, {"v13", false}, {"v15", false}};
// [UNUSED] ones are filled in as elsewhere.
constexpr std::string_view kEarlySpecialTokens =
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]";

std::size_t count_of(const JsonPlace& config, const std::string& key) {
  return static_cast<std::size_t>(config.at(key).id());
}

std::vector<std::string> read_special_tokens_of(const JsonPlace& root, std::size_t count) {
  std::vector<std::string> tokens;
  if (const auto list = root.find("special_tokens")) {
    for (const JsonPlace& entry : list->elements()) {
      entry.allow_only({"rank", "token_str", "is_control"});
      const std::int32_t rank = entry.at("rank").id();
      if (static_cast<std::size_t>(rank) != tokens.size()) {
        entry.at("rank").fail(fmt::format("expected {}, found {}: special tokens must be in the order of their ranks",
                                          tokens.size(), rank));
      }
      tokens.push_back(entry.at("token_str").string());
      if (tokens.back().empty()) entry.at("token_str").fail("a special token without text");
      entry.boolean_or("is_control", true);
    }
  } else {
    const JsonPlace version = root.at("config").at("version");
    if (!version.one_of(kVersions)) {
      root.fail(fmt::format("\"special_tokens\" is missing; files of version {} must list them", version.string()));
    }
    std::istringstream names{std::string(kEarlySpecialTokens)};
    tokens.assign(std::istream_iterator<std::string>(names), {});
  }
  if (tokens.size() > count) {
    root.at("config")
        .at("default_num_special_tokens")
        .fail(fmt::format("is {}, but there are {} special tokens", count, tokens.size()));
  }
  while (tokens.size() < count) tokens.push_back(fmt::format("<SPECIAL_{}>", tokens.size()));
  std::unordered_set<std::string_view> known;
  for (const std::string& token : tokens) {
    if (!known.insert(token).second) root.fail(fmt::format("special token \"{}\" occurs twice", token));
  }
  return tokens;
}

std::string read_token(const JsonPlace& entry, std::size_t rank) {
  entry.allow_only({"rank", "token_bytes", "token_str"});
  if (static_cast<std::size_t>(entry.at("rank").id()) != rank) {
    entry.at("rank").fail(fmt::format("expected {}: tokens must be in the order of their ranks", rank));
  }
  const JsonPlace spelled = entry.at("token_bytes");
  auto bytes = decode_base64(spelled.string());
  if (!bytes || bytes->empty())
    spelled.fail(fmt::format("expected base64 of at least one byte, found \"{}\"", spelled.string()));
  if (bytes->size() > kMaxTokenBytes) spelled.fail("a token of more than 512 bytes is not supported");
  const bool is_byte = bytes->size() == 1 && static_cast<unsigned char>(bytes->front()) == rank;
  if (rank < 256 && !is_byte) spelled.fail("the first 256 tokens must be the bytes in order");
  return std::move(*bytes);
}

std::vector<std::string> read_tokens(const JsonPlace& vocab, std::size_t count) {
  const Json& list = vocab.value();
  if (!list.is_array()) vocab.fail("expected an array");
  if (list.size() < count || count < 256) {
    vocab.fail(
        fmt::format("has {} tokens; config asks for {}, and at least the 256 bytes are needed", list.size(), count));
  }
  std::vector<std::string> tokens;
  tokens.reserve(count);
  std::unordered_set<std::string_view> known;
  for (std::size_t rank = 0; rank < count; ++rank) {
    const JsonPlace entry = vocab.element(rank);
    tokens.push_back(read_token(entry, rank));
    if (!known.insert(tokens.back()).second) entry.fail("its bytes occur twice");
  }
  return tokens;
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

TekkenFile parse_tekken(std::string_view bytes, const std::string& file) {
  const Json json = parse_json(bytes, file);
  const JsonPlace root(json, file);
  // The settings of images, sound and requests do not affect text.
  root.allow_only({"config", "vocab", "special_tokens", "version", "type", "image", "multimodal", "audio",
                   "model_settings_builder"});
  const JsonPlace config = root.at("config");
  config.allow_only({"pattern", "num_vocab_tokens", "default_vocab_size", "default_num_special_tokens", "version"});
  config.at("version").one_of(kVersions);
  const std::size_t vocab_size = count_of(config, "default_vocab_size");
  const std::size_t num_special = count_of(config, "default_num_special_tokens");
  if (num_special > vocab_size) {
    config.at("default_num_special_tokens").fail(fmt::format("is more than default_vocab_size, {}", vocab_size));
  }
  TekkenFile out;
  out.pattern = config.at("pattern").string();
  out.special_tokens = read_special_tokens_of(root, num_special);
  out.tokens = read_tokens(root.at("vocab"), vocab_size - num_special);
  return out;
}

using Ranks = std::unordered_map<std::string_view, std::size_t>;

/// The parts that byte-pair encoding makes of a token without the token itself and those of higher rank; the merge of
/// the lowest rank comes first, and among equal ones the leftmost.
std::vector<std::string_view> parts_of(std::string_view token, std::size_t token_rank, const Ranks& ranks) {
  std::vector<std::string_view> parts;
  for (std::size_t i = 0; i < token.size(); ++i) parts.push_back(token.substr(i, 1));
  while (parts.size() > 1) {
    std::size_t lowest = token_rank, at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i].data(), parts[i].size() + parts[i + 1].size()});
      if (found != ranks.end() && found->second < lowest) {
        lowest = found->second;
        at = i;
      }
    }
    if (lowest == token_rank) break;
    parts[at] = {parts[at].data(), parts[at].size() + parts[at + 1].size()};
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  return parts;
}

/// A token of other than two parts has no merge: only a piece that equals it becomes this token (ignore_merges).
Json merges_of(const std::vector<std::string>& tokens) {
  Ranks ranks;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank], rank);
  Json merges = Json::array();
  for (std::size_t rank = 256; rank < tokens.size(); ++rank) {
    const auto parts = parts_of(tokens[rank], rank, ranks);
    if (parts.size() == 2) merges.push_back({bytes_to_byte_level(parts[0]), bytes_to_byte_level(parts[1])});
  }
  return merges;
}

/// A tokenizer.json without tokens.
constexpr const char* kTokenizerJson = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": {}, "merges": []}})";

/// Its post_processor that puts the token before a text.
Json token_in_front(const std::string& token, std::size_t id) {
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json front = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  return {{"type", "TemplateProcessing"},
          {"single", {front, text}},
          {"pair", {front, text, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
          {"special_tokens", {{token, {{"id", token}, {"ids", {id}}, {"tokens", {token}}}}}}};
}

}  // namespace

std::string tekken_as_json(std::string_view bytes, const std::string& file) {
  const TekkenFile tekken = parse_tekken(bytes, file);
  Json json = Json::parse(kTokenizerJson);
  Json& vocabulary = json["model"]["vocab"];
  const auto add_to_vocabulary = [&](const std::string& text) {
    const std::size_t id = vocabulary.size();
    vocabulary[text] = id;
    if (vocabulary.size() == id)
      throw FormatError(file, "\"{}\" is both a special and another token; no tokenizer.json can have that", text);
  };
  for (const std::string& token : tekken.special_tokens) {
    if (token == "<s>") json["post_processor"] = token_in_front(token, vocabulary.size());
    Json entry = Json::parse(R"({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})");
    entry.update({{"id", vocabulary.size()}, {"content", token}, {"special", true}});
    json["added_tokens"].push_back(std::move(entry));
    add_to_vocabulary(token);
  }
  for (const std::string& token : tekken.tokens) add_to_vocabulary(bytes_to_byte_level(token));
  json["model"]["merges"] = merges_of(tekken.tokens);
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = tekken.pattern;
  return json.dump(1);
}

std::unique_ptr<Tokenizer> make_tekken(std::string_view bytes, const std::string& file,
                                       const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  return std::make_unique<TekkenTokenizer>(parse_tekken(bytes, file), file, special_tokens, options);
}

std::optional<std::string> tekken_version(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tekken.json";
  const auto has = [&](const char* name) { return std::filesystem::exists(folder / name); };
  if (folder.empty() || !has("tekken.json") || has("tokenizer.json") || has("tokenizer.model")) return std::nullopt;
  const Json json = parse_json(storage::read_model_file(file), file.string());
  const JsonPlace version = JsonPlace(json, file.string()).at("config").at("version");
  version.one_of(kVersions);
  return version.string();
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  std::uint32_t bits = 0;
  unsigned num_bits = 0;
  for (const char c : text) {
    const int value = base64_digit(c);
    if (value < 0) return std::nullopt;
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(bits >> num_bits & 0xFFU)));
    bits &= (1U << num_bits) - 1;
  }
  if (bits != 0) return std::nullopt;
  return bytes;
}

}  // namespace lora_train::tokenizer
