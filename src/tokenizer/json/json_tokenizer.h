// A tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, decoder, as one Tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// `bytes` are the file's, `file` its name for messages.
std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view bytes, const std::string& file,
                                               const SpecialTokens& special_tokens, const TokenizerOptions& options);

}  // namespace lora_train::tokenizer
