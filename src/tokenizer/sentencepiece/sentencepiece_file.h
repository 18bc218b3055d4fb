// tokenizer.model: refuses what SentencePiece's library would crash on, before the library sees it.
// Source of the field numbers: google/sentencepiece, src/sentencepiece_model.proto; of the normalisation table:
// src/normalizer.cc and third_party/darts_clone/darts.h there.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace lora_train::tokenizer {

struct SentencePieceFile {
  std::string bytes;  ///< for the library: pieces, trainer and normaliser; no self-tests, no extensions
  bool is_bpe = false;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool has_charsmap = false;
  std::set<std::string, std::less<>> user_defined;  ///< pieces that are found in a text before anything else
  std::size_t max_growth = 3;  ///< bytes that one byte of a text can become: a space becomes U+2581
};

/// FormatError (file, byte) for malformed files; FormatError by name for what is not supported: white space as a suffix,
/// a denormalisation table. What else is wrong with the pieces, the library itself says.
SentencePieceFile check_sentencepiece_file(std::string_view bytes, const std::string& file);

}  // namespace lora_train::tokenizer
