// The pieces of a tokenizer.model with their scores.
#pragma once

#include <string>
#include <string_view>

#include "lora_train/tokenizer/tokenizer_data.h"

namespace lora_train::tokenizer {

/// Added tokens are not among them. Throws FormatError for a model that is not BPE, has no pieces for bytes, or changes text
/// first.
TokenizerData sentencepiece_data(std::string_view bytes, const std::string& file);

}  // namespace lora_train::tokenizer
