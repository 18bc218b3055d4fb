// Byte-pair encoding of tokenizer.json (its model section: a vocabulary, merges, and the treatment of characters
// outside it) and of tekken.json, and the decoder from token spellings to text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bpe/bpe.h"
#include "json_place.h"
#include "lora_train/base/stop_request.h"
#include "pre_tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// Thread-safe for concurrent const calls.
class BpeModel {
 public:
  /// How the vocabulary spells pieces of text.
  struct Spelling {
    bool byte_level = false;        ///< in the byte-level alphabet
    bool spaces_are_u2581 = false;  ///< a space in a piece counts as U+2581
  };
  /// Adds model.vocab to `vocabulary`. FormatError names what is malformed or not supported (other models, dropout,
  /// word affixes).
  BpeModel(const JsonPlace& place, Spelling spelling, Vocabulary& vocabulary);
  /// Tokens are bytes, by rank, which is their priority; the first 256 are the single bytes. The id of tokens[rank] is
  /// first_id + rank.
  BpeModel(const std::vector<std::string>& tokens, std::int32_t first_id);

  /// Replaces `symbols` with those of the piece; their lengths add up to its length. Drops characters missing from the
  /// vocabulary if there is no unk_token, as Hugging Face does; their bytes count towards a neighbour.
  void encode(std::string_view piece, std::vector<Symbol>& symbols) const;
  /// Null if a character can be unknown, since neighbouring unknowns may fuse, or if whole pieces are looked up first.
  const CutTable* cuts() const { return can_cut_ ? &cuts_ : nullptr; }
  /// For WordCache.
  std::uint64_t serial() const { return serial_; }
  bool has_u2581() const { return id_of_character(0x2581) >= 0; }

 private:
  void load_alphabet(const Vocabulary& vocabulary);
  void load_merges(const JsonPlace& place, const Vocabulary& vocabulary);
  bool every_character_has_tokens() const;
  std::int32_t id_of_character(std::uint32_t code) const {
    return code < character_ids_.size() ? character_ids_[code] : -1;
  }
  class Word;
  void split_bytes(std::string_view piece, Word& word) const;
  void split_characters(std::string_view piece, Word& word) const;
  bool add_fallback(std::string_view character, Word& word) const;

  Spelling spelling_;
  bool byte_fallback_ = false, fuse_unk_ = false, can_cut_ = false;
  Vocabulary whole_pieces_;  // tokens that pieces equal to them become, spelled as in the text
  MergeTable merges_;
  CutTable cuts_;
  std::optional<std::int32_t> unk_id_;
  std::array<std::int32_t, 256> byte_ids_{};  // byte-level alphabet, or <0xNN>; -1 = none
  bool byte_tokens_merge_ = false;            // some merge uses a <0xNN>
  std::vector<std::int32_t> character_ids_;   // by code point; -1 = none
  std::uint64_t serial_ = WordCache::next_serial();
};

/// Serves one call of Tokenizer::encode. Throws StopError on a stop request.
class WordEncoder {
 public:
  explicit WordEncoder(const BpeModel& model)
      : model_(model), cuts_(model.cuts()), cache_(WordCache::of_thread(model.serial())) {}

  /// Encodes a piece from a split rule: take(position in the piece, symbols), part by part.
  template <typename Take>
  void encode_piece(std::string_view piece, Take&& take) {
    const bool is_ordinary = piece.size() <= WordCache::kMaxWordBytes && skip_ascii(piece, 0) == piece.size();
    if (is_ordinary) return take(0, look_up(piece));
    encode_parts(piece, take);
  }

  /// Encodes a stretch input[begin, end) whose spaces stand for U+2581, with one more in front if `prefix`: take(id,
  /// range in the input) for every token. A prefix alone has the range of the character at `begin`.
  template <typename Take>
  void encode_spaced(std::string_view input, std::size_t begin, std::size_t end, bool prefix, Take&& take);

 private:
  std::size_t part_end(std::string_view text, std::size_t at) const {
    return cuts_ == nullptr ? text.size() : cuts_->part_end(text, at);
  }
  template <typename Take>
  void encode_parts(std::string_view text, Take&& take) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = part_end(text, at);
      take(at, look_up(text.substr(at, end - at)));
      at = end;
    }
  }
  std::span<const Symbol> look_up(std::string_view word) {
    stop_poll_();
    const bool is_short = word.size() <= WordCache::kMaxWordBytes;
    if (is_short) {
      if (const auto known = cache_.find(word); !known.empty()) return known;
    }
    model_.encode(word, symbols_);
    if (is_short) cache_.insert(word, symbols_);
    return symbols_;
  }

  const BpeModel& model_;
  const CutTable* cuts_;
  WordCache& cache_;
  StopPoll stop_poll_;
  std::vector<Symbol> symbols_;
  std::string prefixed_;
};

template <typename Take>
void WordEncoder::encode_spaced(std::string_view input, std::size_t begin, std::size_t end, bool prefix, Take&& take) {
  // `inserted` bytes of the parts are not in the input.
  const auto take_parts = [&](std::string_view text, std::size_t text_begin, std::size_t inserted) {
    encode_parts(text, [&](std::size_t at, std::span<const Symbol> symbols) {
      for (const Symbol& symbol : symbols) {
        const std::size_t from = std::max(at, inserted) - inserted;
        at += symbol.length;
        const std::size_t to = std::max(at - inserted, from + 1);
        take(symbol.id, whole_characters(input, text_begin + from, text_begin + to));
      }
    });
  };
  const std::string_view text = input.substr(begin, end - begin);
  std::size_t done = 0;
  if (prefix) {
    if (!text.empty()) done = part_end(text, 0);
    prefixed_.assign(1, ' ').append(text.substr(0, done));
    take_parts(prefixed_, begin, 1);
  }
  take_parts(text.substr(done), begin + done, 0);
}

/// Cuts the text between added tokens into pieces, and encodes these one by one.
class BpeTokenizer : public FileTokenizer {
 public:
  Encoding encode(std::string_view text, bool with_offsets) const final;

 protected:
  BpeTokenizer(PreTokenizer pre_tokenizer, const JsonPlace& model, bool spaces_are_u2581)
      : pre_tokenizer_(std::move(pre_tokenizer)),
        model_(model, {pre_tokenizer_.is_byte_level(), spaces_are_u2581}, ids_) {}
  BpeTokenizer(PreTokenizer pre_tokenizer, const std::vector<std::string>& tokens, std::int32_t first_id)
      : pre_tokenizer_(std::move(pre_tokenizer)), model_(tokens, first_id) {}

  /// The state of one encode call.
  struct Run {
    bool with_offsets;
    WordEncoder words;
    Encoding out = {};
    Pieces pieces = {};

    void push(std::int32_t id, ByteRange range) {
      out.ids.push_back(id);
      if (with_offsets) out.offsets.push_back(range);
    }
  };
  /// Encodes a part of the input, text[begin, end).
  virtual void encode_stretch(std::string_view text, std::size_t begin, std::size_t end, Run& run) const;
  void encode_pieces(NormalizedText& text, Run& run) const;

  PreTokenizer pre_tokenizer_;
  BpeModel model_;
};

/// Changes the list of spellings; the text is their concatenation.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

/// Empty for a null or absent decoder (tokens are then joined with spaces). FormatError names unsupported features.
Decoder load_decoder(const JsonPlace& place);

/// The byte of "<0x0A>"-style tokens, else -1. Exactly two hexadecimal digits.
int byte_of_token(std::string_view token);

}  // namespace lora_train::tokenizer
