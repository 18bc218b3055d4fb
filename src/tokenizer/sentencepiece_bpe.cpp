#include "sentencepiece_bpe.h"

#include <algorithm>
#include <functional>

namespace lora_train::tokenizer {
namespace {

constexpr std::uint32_t kSpaceSymbol = 0x2581;

bool is_text(const SentencePiece& piece) {
  return piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined;
}

// Score per distinct value -> rank: SentencePiece merges the highest score first, equal scores from the left.
std::vector<std::uint32_t> ranks_of(const std::vector<SentencePiece>& pieces) {
  std::vector<float> scores;
  for (const auto& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<std::uint32_t> ranks;
  for (const auto& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<std::uint32_t>(at - scores.begin()));
  }
  return ranks;
}

}  // namespace

SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model, const std::array<std::int32_t, 256>& byte_ids)
    : num_pieces_(static_cast<std::int32_t>(model.pieces.size())),
      byte_fallback_(model.byte_fallback),
      byte_ids_(byte_ids),
      next_symbol_(num_pieces_),
      cuts_(model.escape_whitespaces) {
  load_text_pieces(model);
  load_merges(model);
  const std::int32_t space = symbol_of_character(kSpaceSymbol);
  reads_spaces_ = model.escape_whitespaces && space >= 0 && space < num_pieces_;
  if (reads_spaces_) characters_[' '] = space;
}

void SentencePieceBpe::load_text_pieces(const SentencePieceModel& model) {
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    if (!is_text(piece)) continue;
    text_ids_[piece.text] = static_cast<std::int32_t>(i);
    cuts_.add(piece.text);
  }
  cuts_.build();
}

// The symbol of a piece or of a character, which gets one of its own when it is no piece; -1 for other text.
std::int32_t SentencePieceBpe::symbol_of(std::string_view text) {
  const auto found = text_ids_.find(text);
  const Utf8Char c = utf8_char(text, 0);
  if (c.length != text.size()) return found == text_ids_.end() ? kUnknown : found->second;
  if (c.code_point >= characters_.size()) characters_.resize(c.code_point + 1, kUnknown);
  std::int32_t& symbol = characters_[c.code_point];
  if (symbol == kUnknown) symbol = found == text_ids_.end() ? next_symbol_++ : found->second;
  return symbol;
}

void SentencePieceBpe::load_merges(const SentencePieceModel& model) {
  const std::vector<std::uint32_t> ranks = ranks_of(model.pieces);
  merges_ = MergeTable(2 * text_ids_.size());
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    if (!is_text(model.pieces[i])) continue;
    const std::string_view text = model.pieces[i].text;
    std::size_t cut = utf8_char(text, 0).length;
    if (cut == text.size()) symbol_of(text);
    for (; cut < text.size(); cut += utf8_char(text, cut).length) {
      const std::int32_t left = symbol_of(text.substr(0, cut)), right = symbol_of(text.substr(cut));
      if (left >= 0 && right >= 0) merges_.add(left, right, {ranks[i], static_cast<std::int32_t>(i)});
    }
  }
}

void SentencePieceBpe::encode(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  bool all_known = true;
  for (std::size_t at = 0; at < word.size();) {
    const Utf8Char c = valid_utf8_char(word, at);
    const std::int32_t symbol = symbol_of_character(c.code_point);
    all_known = all_known && symbol >= 0 && symbol < num_pieces_;
    symbols.push_back({symbol, static_cast<std::uint32_t>(c.length)});
    at += c.length;
  }
  merge_symbols(merges_, symbols);
  if (all_known) return;
  std::vector<Symbol> known;
  std::size_t at = 0;
  for (const Symbol& symbol : symbols) {
    const std::string_view text = word.substr(at, symbol.length);
    at += symbol.length;
    if (symbol.id >= 0 && symbol.id < num_pieces_) {
      known.push_back(symbol);
    } else if (byte_fallback_) {
      for (const char byte : text) known.push_back({byte_ids_[static_cast<unsigned char>(byte)], 1});
    } else {
      known.push_back({kUnknown, symbol.length});
    }
  }
  symbols = std::move(known);
}

}  // namespace lora_train::tokenizer
