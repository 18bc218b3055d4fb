// Tokens found in the text before anything else (special and user-added ones), special tokens from the files next to a
// tokenizer, and these files with new tokens, as Hugging Face's add_tokens and save_pretrained write them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json/json_place.h"

namespace lora_train::tokenizer {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only if no word character touches it
  bool lstrip = false;       ///< includes white space before it
  bool rstrip = false;       ///< includes white space after it
  bool normalized = true;    ///< matched in the normalised text
  bool special = false;
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
    std::unordered_map<char, std::int32_t> next;
  };
  struct Token {
    std::int32_t id;
    bool single_word, lstrip, rstrip;
  };
  // Longest token that begins at `at`: index into tokens_ and its end, or -1.
  std::int32_t longest_at(std::string_view text, std::size_t at, std::size_t& end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Token> tokens_;
  bool first_byte_[256] = {};
};

struct SpecialTokens {
  /// bos_token, eos_token, pad_token, unk_token, ... by key; an empty optional is an explicit null.
  std::map<std::string, std::optional<std::string>> named;
  std::optional<bool> add_bos_token;
  /// For Hugging Face's SentencePiece-style tokenizers: false puts the dummy space before the first stretch only.
  bool legacy = true;
  /// added_tokens_decoder, else added_tokens.json next to a tokenizer.model; by ascending id.
  std::vector<AddedToken> added;
  /// additional_special_tokens and extra_special_tokens.
  std::vector<std::string> additional;
  std::vector<std::int32_t> generation_eos_ids;
  /// model_type in config.json; empty without one.
  std::string model_type;
  /// The bytes read, for fingerprints.
  std::string bytes;

  std::optional<std::string> name(const std::string& key) const;
  /// Special tokens that Hugging Face finds in text even if no list of added tokens has them: bos_token and the like,
  /// and `additional`.
  std::vector<std::string> in_text() const;
};

/// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json if
/// they exist.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

/// tokenizer.json with entries appended to added_tokens; everything else stays byte for byte. `json` must be valid
/// JSON.
std::string with_added_tokens(std::string_view json, const std::vector<AddedToken>& tokens);

/// The files that the new tokens change, name to text: `main_file` (tokenizer.json or tokenizer.model, whose content is
/// `bytes`) and related files. tokenizer_config.json lists the tokens if it already has an added_tokens_decoder or
/// nothing else could (tokenizer.model); added_tokens.json lists them if the folder has that instead.
std::map<std::string, std::string> files_with_new_tokens(const std::filesystem::path& folder,
                                                         const std::string& main_file, std::string_view bytes,
                                                         const std::vector<AddedToken>& tokens);

}  // namespace lora_train::tokenizer
