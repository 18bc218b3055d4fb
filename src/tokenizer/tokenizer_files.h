// What each kind of tokenizer file is read by: tokenizer.json, tokenizer.model and tekken.json.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// A tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, decoder. `bytes` are the file's, `file` its name for
/// messages.
std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view bytes, const std::string& file,
                                               const SpecialTokens& special_tokens, const TokenizerOptions& options);

/// tokenizer.model, read and encoded by SentencePiece's library: BPE and Unigram, words and characters.
///
/// Added tokens of tokenizer_config.json (added_tokens_decoder) are found in the text first, as Hugging Face does; the
/// model's own control pieces are not recognised in text otherwise, as in SentencePiece. Each stretch between added
/// tokens gets the dummy space in front ("legacy": false in tokenizer_config.json: only the one the text begins with).
/// A piece that covers no character of the text (the dummy space alone, all bytes of a character but its last) has the
/// range of the character it stands at.
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

/// tekken.json: a split pattern, and byte-pair encoding in which a token's rank is its priority.
///
/// Special tokens in a text become their id, as chat templates need it; with `special_tokens_in_text: false` they never
/// do, as in mistral-common.
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
