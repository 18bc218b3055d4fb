// The model section of tokenizer.json: a BPE vocabulary, its merges, and how characters outside it are treated.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bpe.h"
#include "json_place.h"

namespace lora_train::tokenizer {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using Vocabulary = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

/// Thread-safe for concurrent const calls.
class BpeModel {
 public:
  /// FormatError names what is malformed or not built (other models, dropout, word affixes).
  BpeModel(const JsonPlace& place, bool byte_level);

  /// The tokens of one piece of text. Lengths add up to the piece's, except where characters that the vocabulary lacks
  /// are dropped (no unk_token), which Hugging Face does too; they count to a neighbour. Clears `symbols`.
  void encode(std::string_view piece, std::vector<Symbol>& symbols) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void load_vocabulary(const JsonPlace& place);
  void load_merges(const JsonPlace& place);
  void load_alphabet();
  std::int32_t id_of(const std::string& token, const JsonPlace& merges, std::size_t rank) const;
  void split_bytes(std::string_view piece, std::vector<Symbol>& symbols) const;
  void split_characters(std::string_view piece, std::vector<Symbol>& symbols) const;
  void add_unknown(std::uint32_t length, bool follows_unknown, std::vector<Symbol>& symbols) const;
  bool add_fallback(std::string_view character, std::vector<Symbol>& symbols) const;

  bool byte_level_ = false, byte_fallback_ = false, fuse_unk_ = false, ignore_merges_ = false;
  Vocabulary vocabulary_;
  Vocabulary whole_pieces_;  // spelled as in the text; only with ignore_merges
  MergeTable merges_;
  std::optional<std::int32_t> unk_id_;
  std::array<std::int32_t, 256> byte_ids_{};  // byte-level alphabet, or <0xNN>; -1 = none
  std::unordered_map<std::uint32_t, std::int32_t> character_ids_;
};

}  // namespace lora_train::tokenizer
