// The decoder of tokenizer.json: token spellings to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "json_place.h"

namespace lora_train::tokenizer {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Changes the list of spellings; the text is their concatenation.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};

/// Null for a null or absent decoder (tokens are then joined with spaces). FormatError names what is not built.
std::unique_ptr<Decoder> load_decoder(const JsonPlace& place);

/// The byte of "<0x0A>"-style tokens, else -1. Exactly two hexadecimal digits.
int byte_of_token(std::string_view token);

}  // namespace lora_train::tokenizer
