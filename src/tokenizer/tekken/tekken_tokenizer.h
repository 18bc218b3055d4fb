// tekken.json as a Tokenizer: a split pattern, and byte-pair encoding in which a token's rank is its priority.
//
// Special tokens in a text become their id, as chat templates need it; with `special_tokens_in_text: false` they never
// do, as in mistral-common.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// `bytes` are the file's, `file` its name for messages.
std::unique_ptr<Tokenizer> make_tekken(std::string_view bytes, const std::string& file,
                                       const SpecialTokens& special_tokens, const TokenizerOptions& options);

struct TekkenFile {
  std::string pattern;                      ///< splits text into pieces
  std::vector<std::string> special_tokens;  ///< ids 0, 1, ...; those that the file does not name are <SPECIAL_id>
  std::vector<std::string> tokens;          ///< bytes, by rank; id = rank + special_tokens.size()
};

/// FormatError names the file and the place in it for what is malformed or not known: ranks out of order, tokens given
/// twice, a vocabulary smaller than config says, versions that are not listed.
TekkenFile parse_tekken(std::string_view bytes, const std::string& file);

/// Standard base64 (RFC 4648, with padding), as the file spells tokens. Nothing when the text is none: foreign characters,
/// a length that is no multiple of 4, bits after the last byte.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace lora_train::tokenizer
