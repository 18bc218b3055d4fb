#include "sentencepiece_tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "added_tokens.h"
#include "bpe.h"
#include "bpe_model.h"
#include "decoder.h"
#include "input_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "normalizer.h"
#include "sentencepiece_model.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space inside pieces
constexpr std::size_t kMaxPieceBytes = 512;          // real pieces are far shorter; bounds the work of a bad file
constexpr std::int32_t kUnknownCharacter = -1;

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

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const std::string& file, const SpecialTokens& special,
                         const TokenizerOptions& options)
      : model_(std::move(model)), legacy_(special.legacy) {
    load_pieces(file);
    load_merges();
    for (const AddedToken& token : special.added) add_token(token, file, options);
    bos_id_ = control_id(model_.bos_piece);
    eos_id_ = control_id(model_.eos_piece);
    pad_id_ = control_id(model_.pad_piece);
    adds_bos_ = bos_id_.has_value();
    apply_special_tokens(special);
  }

  void set_fingerprint(std::string fingerprint) { fingerprint_ = std::move(fingerprint); }

  Encoding encode(std::string_view text, bool with_offsets) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::optional<std::int32_t> token_to_id(std::string_view token) const override {
    const auto found = all_ids_.find(token);
    return found == all_ids_.end() ? std::nullopt : std::optional<std::int32_t>(found->second);
  }
  std::string id_to_token(std::int32_t id) const override {
    const auto index = static_cast<std::size_t>(id);
    return id >= 0 && index < spellings_.size() ? spellings_[index] : std::string();
  }
  bool is_special(std::int32_t id) const override { return special_.contains(id); }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(spellings_.size()); }

 private:
  struct Run {
    bool with_offsets;
    Encoding out;
    std::vector<Symbol> symbols;
    bool last_unknown = false;

    void push(std::int32_t id, ByteRange range) {
      out.ids.push_back(id);
      if (with_offsets) out.offsets.push_back(range);
    }
  };

  void load_pieces(const std::string& file);
  void load_merges();
  void add_token(const AddedToken& token, const std::string& file, const TokenizerOptions& options);
  std::optional<std::int32_t> control_id(const std::string& piece) const {
    const auto id = token_to_id(piece);
    return id && model_.pieces[static_cast<std::size_t>(*id)].type == PieceType::kControl ? id : std::nullopt;
  }
  std::int32_t symbol_of(std::string_view text);
  void encode_stretch(NormalizedText text, bool dummy_prefix, Run& run) const;
  void encode_part(const NormalizedText& text, std::size_t begin, std::size_t end, Run& run) const;
  void push_unknown(std::string_view text, ByteRange range, Run& run) const;

  SentencePieceModel model_;
  bool legacy_ = true;
  Vocabulary all_ids_;   // every piece and added token
  Vocabulary text_ids_;  // pieces that text can become
  std::unordered_map<std::uint32_t, std::int32_t>
      characters_;  // code point -> symbol; beyond the pieces: only in merges
  MergeTable merges_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::int32_t unk_id_ = -1;
  AddedTokenMatcher user_defined_, added_;
  std::unordered_set<std::int32_t> special_, literal_;  // literal_: decoded as spelled
  std::vector<std::string> spellings_;
};

void SentencePieceTokenizer::load_pieces(const std::string& file) {
  byte_ids_.fill(-1);
  for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
    const SentencePiece& piece = model_.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    const std::string where = file + ": pieces[" + std::to_string(i) + "]";
    if (!all_ids_.emplace(piece.text, id).second) throw FormatError(where, "piece \"" + piece.text + "\" occurs twice");
    if (piece.text.size() > kMaxPieceBytes) throw FormatError(where, "a piece of more than 512 bytes is not built");
    if (piece.type == PieceType::kUnused) throw FormatError(where, "pieces of type UNUSED are not built");
    if (piece.type == PieceType::kUnknown) {
      if (unk_id_ >= 0) throw FormatError(where, "a second piece of type UNKNOWN");
      unk_id_ = id;
    }
    if (piece.type == PieceType::kUnknown || piece.type == PieceType::kControl) special_.insert(id);
    if (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined) text_ids_[piece.text] = id;
    if (piece.type == PieceType::kUserDefined) user_defined_.add({id, piece.text}, piece.text);
    spellings_.push_back(piece.text);
    if (piece.type != PieceType::kByte) continue;
    const int byte = byte_of_token(piece.text);
    if (byte < 0) throw FormatError(where, "a BYTE piece must be spelled <0xNN>, found \"" + piece.text + "\"");
    byte_ids_[static_cast<std::size_t>(byte)] = id;
  }
  if (unk_id_ < 0) throw FormatError(file, "no piece of type UNKNOWN");
  const bool all_bytes = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  if (model_.byte_fallback && !all_bytes)
    throw FormatError(file, "byte_fallback is on, but not all 256 BYTE pieces exist");
}

// The symbol for a part of a piece: its own piece, or one of its own for a single character without one; -1 otherwise.
std::int32_t SentencePieceTokenizer::symbol_of(std::string_view text) {
  const auto found = text_ids_.find(text);
  const Utf8Char c = utf8_char(text, 0);
  if (c.length != text.size()) return found == text_ids_.end() ? -1 : found->second;
  const auto fresh = static_cast<std::int32_t>(model_.pieces.size() + characters_.size());
  return characters_.emplace(c.code_point, found == text_ids_.end() ? fresh : found->second).first->second;
}

void SentencePieceTokenizer::load_merges() {
  const std::vector<std::uint32_t> ranks = ranks_of(model_.pieces);
  merges_ = MergeTable(2 * text_ids_.size());
  for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
    const SentencePiece& piece = model_.pieces[i];
    if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined) continue;
    const std::string_view text = piece.text;
    std::size_t cut = utf8_char(text, 0).length;
    if (cut == text.size()) symbol_of(text);
    for (; cut < text.size(); cut += utf8_char(text, cut).length) {
      const std::int32_t left = symbol_of(text.substr(0, cut)), right = symbol_of(text.substr(cut));
      if (left >= 0 && right >= 0) merges_.add(left, right, {ranks[i], static_cast<std::int32_t>(i)});
    }
  }
}

void SentencePieceTokenizer::add_token(const AddedToken& token, const std::string& file,
                                       const TokenizerOptions& options) {
  const std::string where = file + ": added_tokens_decoder of tokenizer_config.json";
  const auto known = token_to_id(token.content);
  const std::string taken = id_to_token(token.id);
  if ((known && *known != token.id) || (!taken.empty() && taken != token.content)) {
    throw FormatError(where, "\"" + token.content + "\" has id " + std::to_string(token.id) + " there and \"" +
                                 (taken.empty() ? std::to_string(*known) : taken) + "\" in the model");
  }
  const auto index = static_cast<std::size_t>(token.id);
  if (index >= spellings_.size()) spellings_.resize(index + 1);
  spellings_[index] = token.content;
  all_ids_[token.content] = token.id;
  literal_.insert(token.id);
  if (token.special) special_.insert(token.id);
  if (!token.special || options.special_tokens_in_text) added_.add(token, token.content);
}

Encoding SentencePieceTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  Run run{with_offsets, {}, {}};
  for (const auto& part : added_.split(text)) {
    run.last_unknown = false;
    if (part.id >= 0) {
      run.push(part.id, {static_cast<std::uint32_t>(part.begin), static_cast<std::uint32_t>(part.end)});
    } else {
      const bool dummy_prefix = model_.add_dummy_prefix && (legacy_ || part.begin == 0);
      encode_stretch(NormalizedText(text, part.begin, part.end), dummy_prefix, run);
    }
  }
  return std::move(run.out);
}

void SentencePieceTokenizer::encode_stretch(NormalizedText text, bool dummy_prefix, Run& run) const {
  if (model_.escape_whitespaces) replace_all(text, " ", kSpace);
  if (dummy_prefix) text.prepend(model_.escape_whitespaces ? kSpace : std::string_view(" "));
  if (user_defined_.empty()) return encode_part(text, 0, text.text().size(), run);
  for (const auto& part : user_defined_.split(text.text())) {
    if (part.id >= 0) {
      run.push(part.id, text.input_range(part.begin, part.end));
      run.last_unknown = false;
    } else {
      encode_part(text, part.begin, part.end, run);
    }
  }
}

void SentencePieceTokenizer::encode_part(const NormalizedText& text, std::size_t begin, std::size_t end,
                                         Run& run) const {
  const std::string_view all = text.text();
  run.symbols.clear();
  for (std::size_t at = begin; at < end;) {
    const Utf8Char c = utf8_char(all, at);
    const auto known = characters_.find(c.code_point);
    run.symbols.push_back(
        {known == characters_.end() ? kUnknownCharacter : known->second, static_cast<std::uint32_t>(c.length)});
    at += c.length;
  }
  merge_symbols(merges_, run.symbols);
  std::size_t at = begin;
  for (const Symbol& symbol : run.symbols) {
    const ByteRange range = text.input_range(at, at + symbol.length);
    if (symbol.id >= 0 && static_cast<std::size_t>(symbol.id) < model_.pieces.size()) {
      run.push(symbol.id, range);
      run.last_unknown = false;
    } else {
      push_unknown(all.substr(at, symbol.length), range, run);
    }
    at += symbol.length;
  }
}

void SentencePieceTokenizer::push_unknown(std::string_view text, ByteRange range, Run& run) const {
  if (model_.byte_fallback) {
    for (const char byte : text) run.push(byte_ids_[static_cast<unsigned char>(byte)], range);
    return;
  }
  // A run of unknown characters is one unknown token.
  if (run.last_unknown) {
    if (run.with_offsets) run.out.offsets.back().second = range.second;
    return;
  }
  run.push(unk_id_, range);
  run.last_unknown = true;
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  bool at_start = model_.add_dummy_prefix;
  for (const std::int32_t id : ids) {
    const auto index = static_cast<std::size_t>(id);
    if (id < 0 || index >= spellings_.size() || (skip_special && is_special(id))) continue;
    const bool is_piece = index < model_.pieces.size() && !literal_.contains(id);
    if (is_piece && model_.pieces[index].type == PieceType::kByte) {
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte_of_token(spellings_[index]))));
      at_start = false;
      continue;
    }
    std::string token = spellings_[index];
    const bool has_spaces = is_piece && model_.escape_whitespaces && !is_special(id);
    for (std::size_t at = 0; has_spaces && (at = token.find(kSpace, at)) != std::string::npos; ++at) {
      token.replace(at, kSpace.size(), " ");
    }
    if (at_start && has_spaces && token.starts_with(' ')) token.erase(0, 1);
    if (has_spaces) at_start = false;
    bytes += token;
  }
  return repair_utf8(bytes);
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(std::string_view bytes, const std::string& file,
                                              const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  auto tokenizer =
      std::make_unique<SentencePieceTokenizer>(parse_sentencepiece_model(bytes, file), file, special_tokens, options);
  tokenizer->set_fingerprint(hash128_hex(hash128_hex(bytes) + hash128_hex(special_tokens.bytes) +
                                         (options.special_tokens_in_text ? "+model" : "-model")));
  return tokenizer;
}

}  // namespace lora_train::tokenizer
