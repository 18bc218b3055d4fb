// Readers for each kind of tokenizer file: tokenizer.json, tokenizer.model and tekken.json.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// A tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, decoder. `bytes` are the file's content,
/// `file` its name for messages.
std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view bytes, const std::string& file,
                                               const SpecialTokens& special_tokens, const TokenizerOptions& options);

/// tokenizer.model, read and encoded by SentencePiece's library: BPE and Unigram, words and characters.
///
/// Added tokens of tokenizer_config.json (added_tokens_decoder) are found in the text first, as in Hugging Face;
/// otherwise the model's own control pieces are not recognised in text, as in SentencePiece. Each stretch between added
/// tokens gets the dummy space in front ("legacy": false in tokenizer_config.json: only the one at the start of the
/// text). A piece that covers no character of the text (the dummy space alone, all bytes of a character but its last)
/// has the range of the character at its position.
std::unique_ptr<Tokenizer> make_sentencepiece(std::string_view bytes, const std::string& file,
                                              const SpecialTokens& special_tokens, const TokenizerOptions& options);

struct SentencePieceFile {
  std::string bytes;  ///< for the library: pieces, trainer and normaliser, without self-tests and extensions
  bool is_bpe = false;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool has_charsmap = false;
  std::set<std::string, std::less<>> user_defined;  ///< pieces found in a text before anything else
  std::size_t max_growth = 3;                       ///< bytes that one byte of text can become: a space becomes U+2581
};

/// FormatError (file, byte) for malformed files; FormatError by name for unsupported features: white space as a suffix,
/// a denormalisation table. The library itself reports any other problems with the pieces.
SentencePieceFile check_sentencepiece_file(std::string_view bytes, const std::string& file);

/// tekken.json: a split pattern, and byte-pair encoding in which a token's rank is its priority.
///
/// Special tokens in a text become their id, as chat templates need it; with `special_tokens_in_text: false` they never
/// do, as in mistral-common. FormatError names the file and the place in it for anything malformed or unknown: ranks
/// out of order, duplicate tokens, a vocabulary smaller than config says, unlisted versions.
std::unique_ptr<Tokenizer> make_tekken(std::string_view bytes, const std::string& file,
                                       const SpecialTokens& special_tokens, const TokenizerOptions& options);

/// The tokenizer.json with the same ids, which can hold more tokens and has merges: what encoding with the ranks makes
/// of two parts. FormatError as make_tekken, and if a special token is spelled as another one.
std::string tekken_as_json(std::string_view bytes, const std::string& file);

/// config.version ("v7") of the folder's tekken.json; empty if its tokenizer is another file.
std::optional<std::string> tekken_version(const std::filesystem::path& folder);

/// Standard base64 (RFC 4648, with padding), the spelling of tokens in the file. Empty if the text is not base64:
/// foreign characters, a length that is not a multiple of 4, bits after the last byte.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace lora_train::tokenizer
