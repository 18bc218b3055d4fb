// A tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, decoder, as one Tokenizer.
#pragma once

#include <filesystem>
#include <memory>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& file, const SpecialTokens& special_tokens,
                                               const TokenizerOptions& options);

}  // namespace lora_train::tokenizer
