// Character classes of split patterns as the engines of the reference tokenizers mean them.
#pragma once

#include <string>

namespace lora_train::tokenizer {

/// The pattern for PCRE2 with classes spelled out: \s and \S as Unicode's White_Space, to which PCRE2 adds U+180E;
/// properties, \w, \d and \b as of Unicode 16, which Hugging Face's and mistral-common's engines have and Debian 12's
/// PCRE2 (Unicode 14) has not. FormatError for everything that those engines are not known to read in the same way.
std::string spell_out_classes(const std::string& pattern, const std::string& where);

}  // namespace lora_train::tokenizer
