// The model section of tokenizer.json: a BPE vocabulary, its merges, and the treatment of characters outside it. Also
// the decoder from token spellings to text.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bpe/bpe.h"
#include "json_place.h"

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

/// Thread-safe for concurrent const calls.
class BpeModel final : public WordModel {
 public:
  /// How the vocabulary spells pieces of text.
  struct Spelling {
    bool byte_level = false;        ///< in the byte-level alphabet
    bool spaces_are_u2581 = false;  ///< a space in a piece counts as U+2581
  };
  /// FormatError names what is malformed or not supported (other models, dropout, word affixes).
  BpeModel(const JsonPlace& place, Spelling spelling);

  /// Drops characters missing from the vocabulary if there is no unk_token, as Hugging Face does; their bytes count
  /// towards a neighbour.
  void encode(std::string_view piece, std::vector<Symbol>& symbols) const override;
  /// Null if a character can be unknown, since neighbouring unknowns may fuse, or if whole pieces are looked up first.
  const CutTable* cuts() const override { return can_cut_ ? &cuts_ : nullptr; }

  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool has_u2581() const { return id_of_character(0x2581) >= 0; }

 private:
  void load_vocabulary(const JsonPlace& place);
  void load_merges(const JsonPlace& place);
  void load_alphabet();
  void add_cuts(const std::string& token);
  bool every_character_has_tokens() const;
  std::int32_t id_of(const std::string& token, const JsonPlace& merges, std::size_t rank) const;
  std::int32_t id_of_character(std::uint32_t code) const {
    return code < character_ids_.size() ? character_ids_[code] : -1;
  }
  class Word;
  void split_bytes(std::string_view piece, Word& word) const;
  void split_characters(std::string_view piece, Word& word) const;
  bool add_fallback(std::string_view character, Word& word) const;

  Spelling spelling_;
  bool byte_fallback_ = false, fuse_unk_ = false, ignore_merges_ = false, can_cut_ = false;
  Vocabulary vocabulary_;
  Vocabulary whole_pieces_;  // spelled as in the text; only with ignore_merges
  MergeTable merges_;
  CutTable cuts_;
  std::optional<std::int32_t> unk_id_;
  std::array<std::int32_t, 256> byte_ids_{};  // byte-level alphabet, or <0xNN>; -1 = none
  bool byte_tokens_merge_ = false;            // some merge uses a <0xNN>
  std::vector<std::int32_t> character_ids_;   // by code point; -1 = none
};

/// Changes the list of spellings; the text is their concatenation.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

/// Empty for a null or absent decoder (tokens are then joined with spaces). FormatError names unsupported features.
Decoder load_decoder(const JsonPlace& place);

/// The byte of "<0x0A>"-style tokens, else -1. Exactly two hexadecimal digits.
int byte_of_token(std::string_view token);

}  // namespace lora_train::tokenizer
