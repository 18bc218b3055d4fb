// Tokens that are found in the text before anything else (special tokens and user-added ones), special tokens from the files beside
// a tokenizer, and these files with new tokens, as Hugging Face's add_tokens and save_pretrained leave them.
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
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool normalized = true;    ///< looked for in the normalised text
  bool special = false;
};

/// Ids index tables, so that one far above the number of tokens would cost memory and cannot be meant.
inline constexpr std::size_t kMaxUnusedIds = 1 << 16;

/// Reads one entry of tokenizer.json's added_tokens.
AddedToken read_added_token(const JsonPlace& place, std::int32_t id);

/// Finds tokens in a text, leftmost-longest, with their flags. Thread-safe for concurrent const calls.
class AddedTokenMatcher {
 public:
  /// A stretch [begin, end) of the text: a token's id, or -1 for text between tokens. Empty stretches do not occur.
  struct Part {
    std::size_t begin, end;
    std::int32_t id;
  };

  /// `spelling` is what to look for (the content, or its normalised form); an empty one is ignored.
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
  /// SentencePiece-style tokenizers of Hugging Face: false puts the dummy space before the first stretch only.
  bool legacy = true;
  /// added_tokens_decoder, else added_tokens.json beside a tokenizer.model; by ascending id.
  std::vector<AddedToken> added;
  /// additional_special_tokens and extra_special_tokens.
  std::vector<std::string> additional;
  std::vector<std::int32_t> generation_eos_ids;
  /// model_type of config.json; empty without one.
  std::string model_type;
  /// The bytes of what was read, for fingerprints.
  std::string bytes;

  std::optional<std::string> name(const std::string& key) const;
  /// The special tokens that Hugging Face finds in text although no list of added tokens may have them: bos_token and
  /// its like, and `additional`.
  std::vector<std::string> in_text() const;
};

/// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json
/// where they exist.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

/// tokenizer.json with entries at the end of added_tokens; everything else stays byte for byte. `json` is valid JSON.
std::string with_added_tokens(std::string_view json, const std::vector<AddedToken>& tokens);

/// The texts, by file name, that the new tokens change: `main_file` (tokenizer.json or tokenizer.model, whose content is `bytes`)
/// and its neighbours. tokenizer_config.json lists the tokens where it has an added_tokens_decoder already, or where nothing else
/// could (tokenizer.model); added_tokens.json where that is what the folder has instead.
std::map<std::string, std::string> files_with_new_tokens(const std::filesystem::path& folder,
                                                         const std::string& main_file, std::string_view bytes,
                                                         const std::vector<AddedToken>& tokens);

}  // namespace lora_train::tokenizer
