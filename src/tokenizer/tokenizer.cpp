#include "lora_train/tokenizer/tokenizer.h"

#include <algorithm>
#include <span>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/utf8.h"
#include "lora_train/storage/model_file.h"
#include "special_tokens.h"
#include "tokenizer_files.h"

namespace lora_train::tokenizer {
namespace {

using MakeTokenizer = std::unique_ptr<Tokenizer> (*)(std::string_view bytes, const std::string& file,
                                                     const SpecialTokens& special_tokens,
                                                     const TokenizerOptions& options);
struct Kind {
  TokenizerFile file;
  const char* name;
  const char* mark;  ///< in fingerprints
  MakeTokenizer make;
};

// In search order.
constexpr Kind kKinds[] = {
    {TokenizerFile::kTokenizerJson, "tokenizer.json", "json", make_json_tokenizer},
    {TokenizerFile::kSentencePieceModel, "tokenizer.model", "model", make_sentencepiece},
    {TokenizerFile::kTekken, "tekken.json", "tekken", make_tekken},
};

constexpr std::size_t kContext = 16;  // tokens; at least one of these is not an added token

// The part of `all` after `shown`, its beginning. If bytes that turn out not to be a character have changed some
// characters of `shown`, the same length is left out.
std::string rest_of(const std::string& all, const std::string& shown) {
  if (all.starts_with(shown)) return all.substr(shown.size());
  std::size_t at = 0;
  for (std::size_t i = count_chars(shown); i > 0 && at < all.size(); --i) at += utf8_char(all, at).length;
  return all.substr(at);
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const Kind& kind) { return std::filesystem::exists(folder / kind.name); });
}

std::unique_ptr<Tokenizer> load_tokenizer_if_present(const std::filesystem::path& folder,
                                                     const TokenizerOptions& options) {
  return has_tokenizer(folder) ? Tokenizer::load(folder, options) : nullptr;
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& folder, const TokenizerOptions& options) {
  std::string wanted;
  for (const Kind& kind : kKinds) {
    if (options.file != TokenizerFile::kAuto && options.file != kind.file) continue;
    wanted += (wanted.empty() ? "" : " or ") + std::string(kind.name);
    const std::filesystem::path file = folder / kind.name;
    if (!std::filesystem::exists(file)) continue;
    SpecialTokens special_tokens = read_special_tokens(folder);
    const std::string bytes = storage::read_model_file(file);
    auto tokenizer = kind.make(bytes, file.string(), special_tokens, options);
    tokenizer->fingerprint_ = hash128_hex(hash128_hex(bytes) + hash128_hex(special_tokens.bytes) +
                                          (options.special_tokens_in_text ? "+" : "-") + kind.mark);
    if (options.new_tokens.empty()) return tokenizer;
    if (kind.file == TokenizerFile::kTekken) return converted(*tokenizer, file, bytes, special_tokens, options);
    tokenizer->add_tokens(options, file, bytes);
    return tokenizer;
  }
  throw FormatError(folder.string(), "no {} in this folder; copy the model's tokenizer files into it", wanted);
}

std::unique_ptr<Tokenizer> Tokenizer::converted(const Tokenizer& tekken, const std::filesystem::path& file,
                                                std::string_view bytes, SpecialTokens& special_tokens,
                                                const TokenizerOptions& options) {
  const std::pair<const char*, std::optional<std::int32_t>> ids[] = {
      {"bos_token", tekken.bos_id()}, {"eos_token", tekken.eos_id()}, {"pad_token", tekken.pad_id()}};
  for (const auto& [key, id] : ids) {
    if (id) special_tokens.named.try_emplace(key, tekken.id_to_token(*id));
  }
  const std::string json = tekken_as_json(bytes, file.string());
  auto tokenizer = make_json_tokenizer(json, file.string(), special_tokens, options);
  tokenizer->fingerprint_ = tekken.fingerprint();
  tokenizer->add_tokens(options, file.parent_path() / "tokenizer.json", json);
  tokenizer->changed_files_["tokenizer_config.json"] = config_with_names(file.parent_path(), special_tokens);
  tokenizer->changed_files_[file.filename().string()] = "";
  return tokenizer;
}

std::vector<AddedToken> Tokenizer::side_tokens() const { return {}; }

void Tokenizer::add_tokens(const TokenizerOptions& options, const std::filesystem::path& file, std::string_view bytes) {
  std::vector<AddedToken> added = side_tokens();  // whose ids a tokenizer.json without them would give to the new ones
  const auto is_verbatim = [&](const std::string& content) {
    return std::ranges::count(options.verbatim_tokens, content) > 0;
  };
  for (const std::string& content : options.new_tokens) {
    if (const auto id = token_to_id(content)) {
      throw ConfigError("add_tokens",
                        "the tokenizer in {} already has \"{}\" with id {}: use it as it is, and remove it from "
                        "add_tokens",
                        file.parent_path().string(), content, *id);
    }
    added.push_back({.id = next_added_id(), .content = content, .normalized = !is_verbatim(content)});
    add_token(added.back());
  }
  changed_files_ = files_with_new_tokens(file.parent_path(), file.filename().string(), bytes, added);
  for (const std::string& content : options.new_tokens)
    fingerprint_ += hash128_hex(content) + (is_verbatim(content) ? "=" : "");
  fingerprint_ = hash128_hex(fingerprint_);
}

TextStream::TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options)
    : tokenizer_(tokenizer), options_(options) {}

// A decoder may treat the first tokens differently (a space is dropped) and may need several for a character: the new
// text is the difference of two texts that begin with the same tokens.
std::string TextStream::push(std::int32_t id) {
  if (options_.skip_special && tokenizer_.is_special(id)) return {};
  ids_.push_back(id);
  const std::string all = tokenizer_.decode(ids_);
  const bool has_room = options_.max_held == 0 || ids_.size() - num_shown_ < options_.max_held;
  if (all.ends_with(kReplacementChar) && has_room) return {};
  return take(all);
}

std::string TextStream::finish() { return take(tokenizer_.decode(ids_)); }

std::string TextStream::take(const std::string& all) {
  std::string piece = rest_of(all, tokenizer_.decode(std::span(ids_).first(num_shown_)));
  if (ids_.size() > kContext) ids_.erase(ids_.begin(), ids_.end() - kContext);
  num_shown_ = ids_.size();
  return piece;
}

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

std::string StopStrings::push(std::string_view text) {
  if (is_found_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : strings_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    is_found_ = true;
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }
  std::size_t num_kept = 0;  // the longest end of the text that starts a string
  for (const std::string& stop : strings_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > num_kept; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) num_kept = length;
    }
  }
  std::string shown = held_.substr(0, held_.size() - num_kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  return rest;
}

}  // namespace lora_train::tokenizer
