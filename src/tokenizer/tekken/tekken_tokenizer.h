// tekken.json as a Tokenizer: a split pattern, and byte-pair encoding in which a token's rank is its priority.
//
// Special tokens in a text become their id, as chat templates need it; with `special_tokens_in_text: false` they never
// do, as in mistral-common.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// `bytes` are the file's, `file` its name for messages.
std::unique_ptr<Tokenizer> make_tekken(std::string_view bytes, const std::string& file,
                                       const SpecialTokens& special_tokens, const TokenizerOptions& options);

}  // namespace lora_train::tokenizer
