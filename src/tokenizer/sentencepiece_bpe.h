// SentencePiece's merge loop over the pieces of a tokenizer.model.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bpe_model.h"
#include "sentencepiece_model.h"
#include "word_encoder.h"

namespace lora_train::tokenizer {

/// Thread-safe for concurrent const calls.
class SentencePieceBpe final : public WordModel {
 public:
  static constexpr std::int32_t kUnknown = -1;

  /// `byte_ids` are the BYTE pieces by byte; all of them are there when the model has byte_fallback.
  SentencePieceBpe(const SentencePieceModel& model, const std::array<std::int32_t, 256>& byte_ids);

  /// Characters that no piece covers become their bytes (byte_fallback) or kUnknown, one per character.
  void encode(std::string_view word, std::vector<Symbol>& symbols) const override;
  /// Null without byte_fallback: neighbouring unknown characters are one token.
  const CutTable* cuts() const override { return byte_fallback_ ? &cuts_ : nullptr; }
  /// Whether a space in a word is read as U+2581.
  bool reads_spaces() const { return reads_spaces_; }

 private:
  void load_text_pieces(const SentencePieceModel& model);
  void load_merges(const SentencePieceModel& model);
  std::int32_t symbol_of(std::string_view text);
  std::int32_t symbol_of_character(std::uint32_t code) const {
    return code < characters_.size() ? characters_[code] : kUnknown;
  }

  std::int32_t num_pieces_;
  bool byte_fallback_, reads_spaces_ = false;
  std::array<std::int32_t, 256> byte_ids_;
  Vocabulary text_ids_;  // pieces that text can become
  std::int32_t next_symbol_;
  std::vector<std::int32_t> characters_;  // code point -> symbol; num_pieces_ and beyond stand only in merges
  MergeTable merges_;
  CutTable cuts_;
};

}  // namespace lora_train::tokenizer
