// tekken.json: the tokenizer file of mistral-common.
// Source of the format: mistralai/mistral-common, src/mistral_common/tokens/tokenizers/tekken.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer {

struct TekkenFile {
  std::string pattern;                      ///< splits text into pieces
  std::vector<std::string> special_tokens;  ///< ids 0, 1, ...; those that the file does not name are <SPECIAL_id>
  std::vector<std::string> tokens;          ///< bytes, by rank; id = rank + special_tokens.size()
};

/// FormatError names the file and the place in it for what is malformed or not known: ranks out of order, tokens given
/// twice, a vocabulary smaller than config says, versions that are not listed.
TekkenFile parse_tekken(std::string_view bytes, const std::string& file);

}  // namespace lora_train::tokenizer
