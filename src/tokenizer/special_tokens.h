// Tokens found in the text before anything else (special and user-added ones), special tokens from the files next to a
// tokenizer, the table of tokens that they join, and these files with new tokens, as Hugging Face's add_tokens and
// save_pretrained write them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "json/json_place.h"
#include "lora_train/base/utf8.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using Vocabulary = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

inline std::optional<std::int32_t> find_id(const Vocabulary& vocabulary, std::string_view token) {
  const auto found = vocabulary.find(token);
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only if no word character touches it
  bool lstrip = false;       ///< includes white space before it
  bool rstrip = false;       ///< includes white space after it
  bool normalized = true;    ///< matched in the normalised text
  bool special = false;
  std::string where = {};  ///< the entry that names it, for messages
};

/// Ids index tables, so an id far above the number of tokens would waste memory and must be a mistake.
inline constexpr std::size_t kMaxUnusedIds = 1 << 16;

/// Reads one entry of tokenizer.json's added_tokens.
AddedToken read_added_token(const JsonPlace& place, std::int32_t id);

/// Finds tokens in a text, leftmost-longest, with their flags. Thread-safe for concurrent const calls.
class AddedTokenMatcher {
 public:
  /// A stretch [begin, end) of the text: a token's id, or -1 for text between tokens. Never empty.
  struct Part {
    std::size_t begin, end;
    std::int32_t id;
  };

  /// `spelling` is the text to match (the content, or its normalised form); ignored if empty.
  void add(const AddedToken& token, const std::string& spelling);
  bool empty() const { return tokens_.empty(); }
  std::vector<Part> split(std::string_view text) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index into tokens_
    std::unordered_map<char, std::size_t> next;
  };
  // Longest token that begins at `at`: index into tokens_ and its end, or -1.
  std::int32_t longest_at(std::string_view text, std::size_t at, std::size_t& end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<AddedToken> tokens_;
  bool first_byte_[256] = {};
};

struct SpecialTokens {
  /// bos_token, eos_token, pad_token, unk_token, ... by key; an empty optional is an explicit null.
  std::map<std::string, std::optional<std::string>> named;
  std::optional<bool> add_bos_token;
  /// For Hugging Face's SentencePiece-style tokenizers: false puts the dummy space before the first stretch only.
  bool legacy = true;
  /// added_tokens_decoder, else added_tokens.json; by ascending id.
  std::vector<AddedToken> added;
  /// It has an added_tokens_decoder: as in transformers, tokens of other files are not added then.
  bool has_decoder = false;
  /// The tokens of `named` that Hugging Face adds if need be.
  std::map<std::string, AddedToken> by_key;
  /// The list extra_special_tokens, else additional_special_tokens. Where it is an object, it is in `named`.
  std::optional<std::vector<AddedToken>> extra;
  std::vector<std::int32_t> generation_eos_ids;
  /// model_type in config.json; empty without one.
  std::string model_type;
  /// vocab_size in config.json, beside a tokenizer.json.
  std::optional<std::int64_t> num_rows;
  /// The bytes read, for fingerprints.
  std::string bytes;

  std::optional<std::string> name(const std::string& key) const;
  /// Special tokens that Hugging Face adds, in its order: `by_key` with their key, then `extra` without.
  std::vector<std::pair<std::string, AddedToken>> in_text() const;
};

/// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json if
/// they exist.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

/// What the tokenizers of all kinds of files share: a table of tokens, and the added ones among them.
class FileTokenizer : public Tokenizer {
 public:
  std::optional<std::int32_t> token_to_id(std::string_view token) const final { return find_id(ids_, token); }
  std::string id_to_token(std::int32_t id) const final { return repair_utf8(spelling(id)); }
  bool is_special(std::int32_t id) const final { return special_.contains(id); }
  std::int32_t vocab_size() const final { return static_cast<std::int32_t>(spellings_.size()); }

 protected:
  /// As in tokenizers: AddedVocabulary::add_tokens.
  std::int32_t next_added_id() const override;
  void add_token(const AddedToken& token) final { add(token, {}); }
  std::vector<AddedToken> side_tokens() const final { return side_tokens_; }

  /// "" for an id without a token.
  const std::string& spelling(std::int32_t id) const;
  /// The first id of equal tokens counts.
  void set_token(std::int32_t id, const std::string& token);
  /// The tokens of the files next to the tokenizer's that its own do not add. FormatError (the token's `where`) if a
  /// new one's id is not the one of transformers, is an accident there, or has no row in the model.
  void add_side_tokens(const SpecialTokens& special, const TokenizerOptions& options);
  /// FormatError (the token's `where`) if the id or the content belongs to another token, or the id is too large.
  void add(const AddedToken& token, const TokenizerOptions& options);
  /// From now on, finds an added token in texts.
  virtual void find_in_texts(const AddedToken& token) { in_text_.add(token, token.content); }

  Vocabulary ids_;
  std::int32_t num_model_tokens_ = 0;  // without added ones
  std::unordered_set<std::int32_t> special_, added_;
  AddedTokenMatcher in_text_;

 private:
  std::vector<std::string> spellings_;   // by id; "" = none
  std::vector<AddedToken> side_tokens_;  // that only files next to the tokenizer's have
};

/// The files that the new tokens change, name to text: `main_file` (tokenizer.json or tokenizer.model, whose content is
/// `bytes`) and related files. tokenizer_config.json lists the tokens if it already has an added_tokens_decoder or
/// nothing else could (tokenizer.model); added_tokens.json lists them if the folder has that instead.
std::map<std::string, std::string> files_with_new_tokens(const std::filesystem::path& folder,
                                                         const std::string& main_file, std::string_view bytes,
                                                         const std::vector<AddedToken>& tokens);

/// The folder's tokenizer_config.json with the tokens that it lacks in `special_tokens.named`, for a tokenizer.json
/// that transformers reads without any class of its own.
std::string config_with_names(const std::filesystem::path& folder, const SpecialTokens& special_tokens);

}  // namespace lora_train::tokenizer
