// tokenizer.model as a Tokenizer, read and encoded by SentencePiece's library: BPE and Unigram, words and characters.
//
// Added tokens of tokenizer_config.json (added_tokens_decoder) are found in the text first, as Hugging Face does; the
// model's own control pieces are not recognised in text otherwise, as in SentencePiece. Each stretch between added
// tokens gets the dummy space in front ("legacy": false in tokenizer_config.json: only the one the text begins with).
// A piece that covers no character of the text (the dummy space alone, all bytes of a character but its last) has the
// range of the character it stands at.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// `bytes` are the file's, `file` its name for messages.
std::unique_ptr<Tokenizer> make_sentencepiece(std::string_view bytes, const std::string& file,
                                              const SpecialTokens& special_tokens, const TokenizerOptions& options);

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
