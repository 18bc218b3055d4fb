#include "sentencepiece_tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "added_tokens.h"
#include "decoder.h"
#include "input_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "normalizer.h"
#include "sentencepiece_bpe.h"
#include "sentencepiece_model.h"
#include "lora_train/base/utf8.h"
#include "word_encoder.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space inside pieces
constexpr std::size_t kMaxPieceBytes = 512;          // real pieces are far shorter; bounds the work of a bad file

// Checks the pieces and gives the BYTE pieces by byte, -1 where there is none.
std::array<std::int32_t, 256> check_pieces(const SentencePieceModel& model, const std::string& file) {
  std::array<std::int32_t, 256> byte_ids;
  byte_ids.fill(-1);
  bool has_unknown = false;
  std::unordered_set<std::string_view> texts;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const std::string where = file + ": pieces[" + std::to_string(i) + "]";
    if (!texts.insert(piece.text).second) throw FormatError(where, "piece \"" + piece.text + "\" occurs twice");
    if (piece.text.size() > kMaxPieceBytes) throw FormatError(where, "a piece of more than 512 bytes is not built");
    if (piece.type == PieceType::kUnused) throw FormatError(where, "pieces of type UNUSED are not built");
    if (piece.type == PieceType::kUnknown) {
      if (has_unknown) throw FormatError(where, "a second piece of type UNKNOWN");
      has_unknown = true;
    }
    if (piece.type != PieceType::kByte) continue;
    const int byte = byte_of_token(piece.text);
    if (byte < 0) throw FormatError(where, "a BYTE piece must be spelled <0xNN>, found \"" + piece.text + "\"");
    std::int32_t& id = byte_ids[static_cast<std::size_t>(byte)];
    if (id >= 0) throw FormatError(where, "byte " + piece.text + " already has piece " + std::to_string(id));
    id = static_cast<std::int32_t>(i);
  }
  if (!has_unknown) throw FormatError(file, "no piece of type UNKNOWN");
  const bool all_bytes = std::find(byte_ids.begin(), byte_ids.end(), -1) == byte_ids.end();
  if (model.byte_fallback && !all_bytes)
    throw FormatError(file, "byte_fallback is on, but not all 256 BYTE pieces exist");
  return byte_ids;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const std::string& file, const SpecialTokens& special,
                         const TokenizerOptions& options)
      : model_(std::move(model)), legacy_(special.legacy), bpe_(model_, check_pieces(model_, file)) {
    load_pieces();
    for (const AddedToken& token : special.added) add_token(token, file, options);
    for (const std::string& name : special.in_text()) {
      const auto id = token_to_id(name);
      if (!id || literal_.contains(*id)) continue;
      add_token({.id = *id, .content = name, .normalized = false, .special = true}, file, options);
    }
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
    WordEncoder words;
    Encoding out;
    bool last_unknown = false;

    void push(std::int32_t id, ByteRange range) {
      out.ids.push_back(id);
      if (with_offsets) out.offsets.push_back(range);
    }
  };

  void load_pieces();
  void add_token(const AddedToken& token, const std::string& file, const TokenizerOptions& options);
  std::optional<std::int32_t> control_id(const std::string& piece) const {
    const auto id = token_to_id(piece);
    return id && model_.pieces[static_cast<std::size_t>(*id)].type == PieceType::kControl ? id : std::nullopt;
  }
  void encode_stretch(std::string_view text, std::size_t begin, std::size_t end, Run& run) const;
  void encode_materialized(NormalizedText text, bool dummy_prefix, Run& run) const;
  void push(std::int32_t id, ByteRange range, Run& run) const;

  SentencePieceModel model_;
  bool legacy_ = true;
  SentencePieceBpe bpe_;
  std::int32_t unk_id_ = -1;
  Vocabulary all_ids_;  // every piece and added token
  AddedTokenMatcher user_defined_, added_;
  bool spaces_in_user_defined_ = false;
  std::unordered_set<std::int32_t> special_, literal_;  // literal_: decoded as spelled
  std::vector<std::string> spellings_;
  std::uint64_t serial_ = WordCache::next_serial();
};

void SentencePieceTokenizer::load_pieces() {
  for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
    const SentencePiece& piece = model_.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    all_ids_.emplace(piece.text, id);
    spellings_.push_back(piece.text);
    if (piece.type == PieceType::kUnknown) unk_id_ = id;
    if (piece.type == PieceType::kUnknown || piece.type == PieceType::kControl) special_.insert(id);
    if (piece.type != PieceType::kUserDefined) continue;
    user_defined_.add({id, piece.text}, piece.text);
    const bool has_space = piece.text.find(kSpace) != std::string::npos || piece.text.find(' ') != std::string::npos;
    spaces_in_user_defined_ = spaces_in_user_defined_ || has_space;
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
  if (index >= spellings_.size() + kMaxUnusedIds) {
    throw FormatError(where, "id " + std::to_string(token.id) + " of \"" + token.content + "\" is far above the " +
                                 std::to_string(spellings_.size()) + " tokens");
  }
  if (index >= spellings_.size()) spellings_.resize(index + 1);
  spellings_[index] = token.content;
  all_ids_[token.content] = token.id;
  literal_.insert(token.id);
  if (token.special) special_.insert(token.id);
  if (!token.special || options.special_tokens_in_text) added_.add(token, token.content);
}

Encoding SentencePieceTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  Run run{with_offsets, WordEncoder(bpe_, serial_), {}};
  run.out.ids.reserve(text.size() / 3);
  for (const auto& part : added_.split(text)) {
    run.last_unknown = false;
    if (part.id >= 0) {
      run.push(part.id, {static_cast<std::uint32_t>(part.begin), static_cast<std::uint32_t>(part.end)});
    } else {
      encode_stretch(text, part.begin, part.end, run);
    }
  }
  return std::move(run.out);
}

void SentencePieceTokenizer::encode_stretch(std::string_view text, std::size_t begin, std::size_t end, Run& run) const {
  const bool dummy_prefix = model_.add_dummy_prefix && (legacy_ || begin == 0);
  if (!bpe_.reads_spaces() || spaces_in_user_defined_) {
    return encode_materialized(NormalizedText(text, begin, end), dummy_prefix, run);
  }
  const auto take = [&](std::int32_t id, ByteRange range) { push(id, range, run); };
  if (user_defined_.empty()) return run.words.encode_spaced(text, begin, end, dummy_prefix, take);
  bool prefix = dummy_prefix;
  for (const auto& part : user_defined_.split(text.substr(begin, end - begin))) {
    const std::size_t part_begin = begin + part.begin, part_end = begin + part.end;
    if (part.id < 0) {
      run.words.encode_spaced(text, part_begin, part_end, prefix, take);
    } else {
      if (prefix) run.words.encode_spaced(text, part_begin, part_begin, prefix, take);
      push(part.id, {static_cast<std::uint32_t>(part_begin), static_cast<std::uint32_t>(part_end)}, run);
    }
    prefix = false;
  }
}

// The general way: user-defined pieces with spaces in them, models that do not spell spaces as U+2581.
void SentencePieceTokenizer::encode_materialized(NormalizedText text, bool dummy_prefix, Run& run) const {
  if (model_.escape_whitespaces) replace_all(text, " ", kSpace);
  if (dummy_prefix) text.prepend(model_.escape_whitespaces ? kSpace : std::string_view(" "));
  for (const auto& part : user_defined_.split(text.text())) {
    if (part.id >= 0) {
      push(part.id, text.input_range(part.begin, part.end), run);
      continue;
    }
    const std::string_view stretch = text.text().substr(part.begin, part.end - part.begin);
    run.words.encode_piece(stretch, [&](std::size_t at, std::span<const Symbol> symbols) {
      at += part.begin;
      for (const Symbol& symbol : symbols) {
        push(symbol.id, text.input_range(at, at + symbol.length), run);
        at += symbol.length;
      }
    });
  }
}

void SentencePieceTokenizer::push(std::int32_t id, ByteRange range, Run& run) const {
  if (id != SentencePieceBpe::kUnknown) {
    run.push(id, range);
    run.last_unknown = false;
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
