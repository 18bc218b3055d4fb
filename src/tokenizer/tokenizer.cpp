#include "lora_train/tokenizer/tokenizer.h"

#include <limits>

#include "input_text.h"
#include "json_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "sentencepiece_tokenizer.h"
#include "special_tokens.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {

void check_input_text(std::string_view text) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw DataError("byte 0", "a text of " + std::to_string(text.size()) + " bytes is too long; the limit is 2 GiB");
  }
  if (const auto at = find_invalid_utf8(text)) {
    throw DataError("byte " + std::to_string(*at), "the text is not valid UTF-8; convert the file to UTF-8");
  }
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& folder, const TokenizerOptions& options) {
  const auto json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  const bool has_json = std::filesystem::exists(json), has_model = std::filesystem::exists(model);
  const bool use_json =
      options.file == TokenizerFile::kTokenizerJson || (options.file == TokenizerFile::kAuto && has_json);
  if (use_json ? !has_json : !has_model) {
    const char* wanted = options.file == TokenizerFile::kAuto ? "tokenizer.json or tokenizer.model"
                         : use_json                           ? "tokenizer.json"
                                                              : "tokenizer.model";
    throw FormatError(folder.string(),
                      std::string("no ") + wanted + " in this folder; copy the tokenizer files of the model there");
  }
  const SpecialTokens special_tokens = read_special_tokens(folder);
  const std::filesystem::path& file = use_json ? json : model;
  const std::string bytes = read_file(file);
  return use_json ? make_json_tokenizer(bytes, file.string(), special_tokens, options)
                  : make_sentencepiece(bytes, file.string(), special_tokens, options);
}

}  // namespace lora_train::tokenizer
