// Converts text to token ids and back, with the files of a Hugging Face folder: tokenizer.json (byte-level and
// SentencePiece-style BPE), SentencePiece's tokenizer.model (read by its library) or mistral-common's tekken.json. No
// Python, no Rust. Also streams text token by token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lora_train::tokenizer {

/// Half-open byte range [first, second).
using ByteRange = std::pair<std::uint32_t, std::uint32_t>;

struct Encoding {
  std::vector<std::int32_t> ids;
  /// If requested, one per id, else empty: the bytes of the *input* text that the token stands for. Ranges ascend. If
  /// normalisation changed the text (NFC), a range covers the whole changed stretch; a token that is part of a
  /// character covers that character; inserted text (a dummy space) has the range of the character after it.
  std::vector<ByteRange> offsets;
};

/// The tokenizer file to read.
enum class TokenizerFile {
  kAuto,  ///< the first that exists, in this order
  kTokenizerJson,
  kSentencePieceModel,
  kTekken
};

struct TokenizerOptions {
  TokenizerFile file = TokenizerFile::kAuto;
  /// Special tokens (<|im_end|>, [INST], ...) spelled out in a text become their id, as in Hugging Face. If false,
  /// those marked special are encoded like any other text; added tokens that are not special are still found. In
  /// tekken.json all named special tokens are marked.
  bool special_tokens_in_text = true;
  /// Added like Hugging Face's add_tokens: with the next free ids, found in the (normalised) text before anything else,
  /// and not special, so that decoding without special tokens keeps them.
  std::vector<std::string> new_tokens = {};
  /// The new_tokens to find in the text before it is normalised, like AddedToken(normalized=False).
  std::vector<std::string> verbatim_tokens = {};
};

struct AddedToken;     // a token of added_tokens; private to the module
struct SpecialTokens;  // the content of tokenizer_config.json and related files; private to the module

/// True if the folder holds a file that Tokenizer::load reads.
bool has_tokenizer(const std::filesystem::path& folder);

/// Thread-safe for concurrent const calls: every thread has its own cache.
class Tokenizer {
 public:
  /// Reads tokenizer.json, tokenizer.model or tekken.json, and tokenizer_config.json, special_tokens_map.json,
  /// added_tokens.json and generation_config.json if they exist. Throws FormatError for a missing or malformed file,
  /// and for unsupported features, with the file and the place in it ("folder/tokenizer.json: model.dropout"). Throws ConfigError
  /// (add_tokens) for new tokens that the tokenizer already has.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& folder, const TokenizerOptions& options = {});

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// `text` is UTF-8 below 2 GiB (else DataError, where is "byte N"). Adds neither BOS nor EOS.
  virtual Encoding encode(std::string_view text, bool with_offsets = false) const = 0;

  /// The text of the ids, as Hugging Face decodes it without clean-up. Bytes that are not valid UTF-8 become U+FFFD.
  /// `skip_special` leaves out the tokens that the file marks as special. Ids outside the vocabulary add nothing.
  virtual std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const = 0;

  virtual std::optional<std::int32_t> token_to_id(std::string_view token) const = 0;
  /// The token as spelled in the file (byte-level tokens in their printable form); "" for an id without a token.
  virtual std::string id_to_token(std::int32_t id) const = 0;
  /// True for added tokens marked special, SentencePiece's control and unknown pieces, and the special tokens of
  /// tekken.json.
  virtual bool is_special(std::int32_t id) const = 0;
  /// Largest id + 1, including added tokens. The number of embedding rows may be larger.
  virtual std::int32_t vocab_size() const = 0;

  /// From tokenizer_config.json, else special_tokens_map.json (without an added_tokens_decoder, the other way round),
  /// else (eos) the first one of generation_config.json, else tokenizer.model or tekken.json. Null means there is none.
  std::optional<std::int32_t> bos_id() const { return bos_id_; }
  std::optional<std::int32_t> eos_id() const { return eos_id_; }
  std::optional<std::int32_t> pad_id() const { return pad_id_; }
  /// All end tokens of generation_config.json, in order; empty without the file.
  const std::vector<std::int32_t>& generation_eos_ids() const { return generation_eos_ids_; }
  /// True if Hugging Face puts BOS before a plain text (add_bos_token, or the post-processor of tokenizer.json).
  bool adds_bos() const { return adds_bos_; }
  /// 32 hexadecimal digits over everything that determines the ids: file bytes and options. For cache keys.
  const std::string& fingerprint() const { return fingerprint_; }
  /// The files of the folder that new tokens change: name and new text, or no text if the file must go. Together with
  /// the other files, they load as this tokenizer. Empty without new tokens. A tekken.json goes: it has no place for
  /// them, and a tokenizer.json with the same ids takes its place (transformers prefers tekken.json where both are).
  const std::map<std::string, std::string>& changed_files() const { return changed_files_; }

 protected:
  Tokenizer() = default;
  /// The id that Hugging Face gives to the next added token.
  virtual std::int32_t next_added_id() const { return vocab_size(); }
  virtual void add_token(const AddedToken&) {}
  /// Added tokens that the tokenizer's own file lacks.
  virtual std::vector<AddedToken> side_tokens() const;
  /// Fills the members below from the folder's side files.
  void apply_special_tokens(const SpecialTokens& special_tokens);

  std::optional<std::int32_t> bos_id_, eos_id_, pad_id_;
  std::vector<std::int32_t> generation_eos_ids_;
  bool adds_bos_ = false;
  std::string fingerprint_;

 private:
  void add_tokens(const TokenizerOptions& options, const std::filesystem::path& file, std::string_view bytes);
  /// The tokenizer of a tekken.json, as the one of a tokenizer.json with new tokens.
  static std::unique_ptr<Tokenizer> converted(const Tokenizer& tekken, const std::filesystem::path& file,
                                              std::string_view bytes, SpecialTokens& special_tokens,
                                              const TokenizerOptions& options);
  std::map<std::string, std::string> changed_files_;
};

/// Null if the folder has no tokenizer file (pre-tokenised data need none). Throws what Tokenizer::load throws.
std::unique_ptr<Tokenizer> load_tokenizer_if_present(const std::filesystem::path& folder,
                                                     const TokenizerOptions& options = {});

struct TextStreamOptions {
  bool skip_special = true;  ///< special tokens add no text
  std::size_t max_held = 0;  ///< at most this many tokens wait for the rest of a character; 0 = no limit
};

/// Turns tokens into pieces of text that never split a character. All pieces joined equal Tokenizer::decode of all ids
/// (without a limit on held tokens), with one exception: a decoder with byte fallback also makes a character unreadable
/// if stray bytes follow it, but here it stays as shown. Takes constant time per token, except for runs of bytes that
/// are not text. Not thread-safe.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options = {});

  /// The new text; empty while waiting for more tokens.
  std::string push(std::int32_t id);
  /// The remaining text, after the last token.
  std::string finish();

 private:
  std::string take(const std::string& all);

  const Tokenizer& tokenizer_;
  TextStreamOptions options_;
  std::vector<std::int32_t> ids_;  ///< [0, num_shown_) are already shown and kept as context for the others
  std::size_t num_shown_ = 0;
};

/// Cuts a streamed text at the first stop string, which may arrive in parts.
class StopStrings {
 public:
  /// Empty strings are not allowed. Without strings, everything passes.
  explicit StopStrings(std::vector<std::string> strings);

  /// The text that may be shown now; holds back what could start a stop string. Empty once a stop string was found.
  std::string push(std::string_view text);
  /// The remaining text, if no stop string was found.
  std::string finish();
  bool is_found() const { return is_found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool is_found_ = false;
};

}  // namespace lora_train::tokenizer
