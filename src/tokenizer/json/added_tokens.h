// Tokens that are found in the text before anything else: special tokens and user-added ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json_place.h"

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

}  // namespace lora_train::tokenizer
