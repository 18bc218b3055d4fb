#include "lora_train/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>

#include "bpe/input_text.h"
#include "bpe/valid_utf8.h"
#include "folder_file.h"
#include "json/json_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"
#include "sentencepiece/sentencepiece_tokenizer.h"
#include "special_tokens.h"
#include "tekken/tekken_tokenizer.h"

namespace lora_train::tokenizer {

void check_input_text(std::string_view text) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw DataError("byte 0", "a text of " + std::to_string(text.size()) + " bytes is too long; the limit is 2 GiB");
  }
  if (is_valid_utf8(text)) return;
  throw DataError("byte " + std::to_string(find_invalid_utf8(text).value_or(0)),
                  "the text is not valid UTF-8; convert the file to UTF-8");
}

namespace {

using MakeTokenizer = std::unique_ptr<Tokenizer> (*)(std::string_view bytes, const std::string& file,
                                                     const SpecialTokens& special_tokens,
                                                     const TokenizerOptions& options);
struct Kind {
  TokenizerFile file;
  const char* name;
  MakeTokenizer make;
};

// In the order in which they are looked for.
constexpr Kind kKinds[] = {
    {TokenizerFile::kTokenizerJson, "tokenizer.json", make_json_tokenizer},
    {TokenizerFile::kSentencePieceModel, "tokenizer.model", make_sentencepiece},
    {TokenizerFile::kTekken, "tekken.json", make_tekken},
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
    return kind.make(read_folder_file(file), file.string(), special_tokens, options);
  }
  throw FormatError(folder.string(), "no " + wanted + " in this folder; copy the tokenizer files of the model there");
}

}  // namespace lora_train::tokenizer
