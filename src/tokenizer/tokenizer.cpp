#include "lora_train/tokenizer/tokenizer.h"

#include <algorithm>

#include "json/json_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/storage/model_file.h"
#include "new_tokens.h"
#include "sentencepiece/sentencepiece_tokenizer.h"
#include "special_tokens.h"
#include "tekken/tekken_tokenizer.h"

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

// In the order in which they are looked for.
constexpr Kind kKinds[] = {
    {TokenizerFile::kTokenizerJson, "tokenizer.json", "json", make_json_tokenizer},
    {TokenizerFile::kSentencePieceModel, "tokenizer.model", "model", make_sentencepiece},
    {TokenizerFile::kTekken, "tekken.json", "tekken", make_tekken},
};

}  // namespace

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const Kind& kind) { return std::filesystem::exists(folder / kind.name); });
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& folder, const TokenizerOptions& options) {
  std::string wanted;
  for (const Kind& kind : kKinds) {
    if (options.file != TokenizerFile::kAuto && options.file != kind.file) continue;
    wanted += (wanted.empty() ? "" : " or ") + std::string(kind.name);
    const std::filesystem::path file = folder / kind.name;
    if (!std::filesystem::exists(file)) continue;
    const SpecialTokens special_tokens = read_special_tokens(folder);
    const std::string bytes = storage::read_model_file(file);
    auto tokenizer = kind.make(bytes, file.string(), special_tokens, options);
    tokenizer->fingerprint_ = hash128_hex(hash128_hex(bytes) + hash128_hex(special_tokens.bytes) +
                                          (options.special_tokens_in_text ? "+" : "-") + kind.mark);
    if (!options.new_tokens.empty()) tokenizer->add_tokens(options, file, bytes);
    return tokenizer;
  }
  throw FormatError(folder.string(), "no " + wanted + " in this folder; copy the tokenizer files of the model there");
}

void Tokenizer::add_tokens(const TokenizerOptions& options, const std::filesystem::path& file, std::string_view bytes) {
  std::vector<AddedToken> added;
  const auto is_verbatim = [&](const std::string& content) {
    return std::ranges::count(options.verbatim_tokens, content) > 0;
  };
  for (const std::string& content : options.new_tokens) {
    if (const auto id = token_to_id(content)) {
      throw ConfigError("add_tokens", "the tokenizer in " + file.parent_path().string() + " has \"" + content +
                                          "\" already, with id " + std::to_string(*id) +
                                          ": use it as it is, and remove it from add_tokens");
    }
    const auto id = next_added_id();
    if (!id) {
      throw ConfigError("add_tokens", file.string() +
                                          " has no place for added tokens; use a folder of the model that "
                                          "has tokenizer.json");
    }
    added.push_back({.id = *id, .content = content, .normalized = !is_verbatim(content)});
    add_token(added.back());
  }
  changed_files_ = files_with_new_tokens(file.parent_path(), file.filename().string(), bytes, added);
  for (const std::string& content : options.new_tokens)
    fingerprint_ += hash128_hex(content) + (is_verbatim(content) ? "=" : "");
  fingerprint_ = hash128_hex(fingerprint_);
}

}  // namespace lora_train::tokenizer
