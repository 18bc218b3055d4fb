#include "sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <unordered_set>

#include "bpe/cut_table.h"
#include "bpe/valid_utf8.h"
#include "bpe/word_encoder.h"
#include "json/added_tokens.h"
#include "json/bpe_model.h"
#include "json/decoder.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"
#include "sentencepiece_file.h"

// The library exports it, its header does not name it: without it every load writes to stderr.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace lora_train::tokenizer {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space inside pieces
constexpr int kLogNothingButFatal = 3;
// The library needs some 200 bytes for each byte of a text.
constexpr std::size_t kMaxBytesAtOnce = 1 << 16;

void load_processor(SentencePieceProcessor& processor, const std::string& bytes, const std::string& file) {
  sentencepiece::logging::SetMinLogLevel(kLogNothingButFatal);
  std::string error;
  try {
    const auto status = processor.LoadFromSerializedProto(bytes);
    if (status.ok()) return;
    error = status.message();
  } catch (const std::exception& exception) {  // of the library's tries
    error = exception.what();
  }
  throw FormatError(file, "SentencePiece refuses the model: " + error);
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceFile model, const std::string& file, const SpecialTokens& special,
                         const TokenizerOptions& options)
      : model_(std::move(model)), file_(file), legacy_(special.legacy) {
    load_processor(processor_, model_.bytes, file_);
    for (const AddedToken& token : special.added) add_token(token, options);
    for (const std::string& name : special.in_text()) {
      const auto id = token_to_id(name);
      if (!id || literal_.contains(*id)) continue;
      add_token({.id = *id, .content = name, .normalized = false, .special = true}, options);
    }
    const auto known = [](int id) { return id < 0 ? std::nullopt : std::optional<std::int32_t>(id); };
    bos_id_ = known(processor_.bos_id());
    eos_id_ = known(processor_.eos_id());
    pad_id_ = known(processor_.pad_id());
    adds_bos_ = bos_id_.has_value();
    apply_special_tokens(special);
  }

  Encoding encode(std::string_view text, bool with_offsets) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::optional<std::int32_t> token_to_id(std::string_view token) const override;
  std::string id_to_token(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override {
    return special_.contains(id) || (is_piece(id) && (processor_.IsUnknown(id) || processor_.IsControl(id)));
  }
  std::int32_t vocab_size() const override { return num_pieces() + static_cast<std::int32_t>(new_tokens_.size()); }

 protected:
  std::optional<std::int32_t> next_added_id() const override { return vocab_size(); }
  void add_token(const AddedToken& token) override { add_token(token, {}); }

 private:
  // What few texts need: made when the first of them comes.
  struct Continuation {
    SentencePieceProcessor processor;  // adds no dummy space
    CutTable cuts{/*spaces_are_u2581=*/true};
  };

  std::int32_t num_pieces() const { return processor_.GetPieceSize(); }
  bool is_piece(std::int32_t id) const { return id >= 0 && id < num_pieces(); }
  void add_token(const AddedToken& token, const TokenizerOptions& options);
  const Continuation& continuation() const;
  void encode_stretch(std::string_view text, ByteRange stretch, bool with_offsets, Encoding& out) const;
  void encode_at_once(const SentencePieceProcessor& processor, std::string_view text, ByteRange stretch,
                      bool with_offsets, Encoding& out) const;

  SentencePieceFile model_;
  std::string file_;
  bool legacy_ = true;
  SentencePieceProcessor processor_;
  mutable std::once_flag continuation_made_;
  mutable Continuation continuation_;
  AddedTokenMatcher added_;
  std::unordered_set<std::int32_t> special_, literal_;  // of the added tokens; literal_: decoded as spelled
  std::vector<std::string> new_tokens_;                 // by id, from num_pieces() on; empty where there is none
  Vocabulary new_ids_;
};

std::optional<std::int32_t> SentencePieceTokenizer::token_to_id(std::string_view token) const {
  if (token.empty()) return std::nullopt;
  const std::int32_t id = processor_.PieceToId(token);
  if (processor_.IdToPiece(id) == token) return id;  // else it is the unknown piece's
  const auto found = new_ids_.find(token);
  return found == new_ids_.end() ? std::nullopt : std::optional<std::int32_t>(found->second);
}

std::string SentencePieceTokenizer::id_to_token(std::int32_t id) const {
  if (is_piece(id)) return processor_.IdToPiece(id);
  const auto index = static_cast<std::size_t>(id) - static_cast<std::size_t>(num_pieces());
  return index < new_tokens_.size() ? new_tokens_[index] : std::string();
}

void SentencePieceTokenizer::add_token(const AddedToken& token, const TokenizerOptions& options) {
  const std::string where = file_ + ": added_tokens_decoder of tokenizer_config.json";
  const auto known = token_to_id(token.content);
  const std::string taken = id_to_token(token.id);
  if ((known && *known != token.id) || (!taken.empty() && taken != token.content)) {
    throw FormatError(where, "\"" + token.content + "\" has id " + std::to_string(token.id) + " there and \"" +
                                 (taken.empty() ? std::to_string(*known) : taken) + "\" in the model");
  }
  if (!is_piece(token.id)) {
    const auto index = static_cast<std::size_t>(token.id) - static_cast<std::size_t>(num_pieces());
    if (index >= new_tokens_.size() + kMaxUnusedIds) {
      throw FormatError(where, "id " + std::to_string(token.id) + " of \"" + token.content + "\" is far above the " +
                                   std::to_string(vocab_size()) + " tokens");
    }
    if (index >= new_tokens_.size()) new_tokens_.resize(index + 1);
    new_tokens_[index] = token.content;
    new_ids_[token.content] = token.id;
  }
  literal_.insert(token.id);
  if (token.special) special_.insert(token.id);
  if (!token.special || options.special_tokens_in_text) added_.add(token, token.content);
}

Encoding SentencePieceTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  Encoding out;
  for (const auto& part : added_.split(text)) {
    const ByteRange range(static_cast<std::uint32_t>(part.begin), static_cast<std::uint32_t>(part.end));
    if (part.id < 0) {
      encode_stretch(text, range, with_offsets, out);
      continue;
    }
    out.ids.push_back(part.id);
    if (with_offsets) out.offsets.push_back(range);
  }
  return out;
}

const SentencePieceTokenizer::Continuation& SentencePieceTokenizer::continuation() const {
  std::call_once(continuation_made_, [this] {
    // normalizer_spec {add_dummy_prefix: false}: a message that comes twice is merged.
    load_processor(continuation_.processor, model_.bytes + std::string("\x1A\x02\x18\x00", 4), file_);
    for (std::int32_t id = 0; id < num_pieces(); ++id) {
      if (!processor_.IsControl(id) && !processor_.IsByte(id)) continuation_.cuts.add(processor_.IdToPiece(id));
    }
    continuation_.cuts.build();
  });
  return continuation_;
}

// A long stretch is cut where no piece of a BPE model can reach across. Other models are encoded whole: what is best at
// the end of a text can depend on its beginning, if only by rounding.
void SentencePieceTokenizer::encode_stretch(std::string_view text, ByteRange stretch, bool with_offsets,
                                            Encoding& out) const {
  auto [begin, end] = stretch;
  const bool has_prefix = model_.add_dummy_prefix && (legacy_ || begin == 0);
  const SentencePieceProcessor* processor =
      has_prefix || !model_.add_dummy_prefix ? &processor_ : &continuation().processor;
  const bool can_cut =
      model_.is_bpe && model_.byte_fallback && !model_.has_charsmap && !model_.remove_extra_whitespaces;
  while (can_cut && end - begin > kMaxBytesAtOnce) {
    const Continuation& rest = continuation();
    std::size_t cut = begin;
    while (cut < end && cut - begin < kMaxBytesAtOnce) cut = rest.cuts.part_end(text.substr(0, end), cut);
    encode_at_once(*processor, text, {begin, static_cast<std::uint32_t>(cut)}, with_offsets, out);
    begin = static_cast<std::uint32_t>(cut);
    processor = &rest.processor;
  }
  if (begin < end) encode_at_once(*processor, text, {begin, end}, with_offsets, out);
}

void SentencePieceTokenizer::encode_at_once(const SentencePieceProcessor& processor, std::string_view text,
                                            ByteRange stretch, bool with_offsets, Encoding& out) const {
  throw_if_stop_requested();
  const auto [begin, end] = stretch;
  const std::size_t limit = std::numeric_limits<std::int32_t>::max() / model_.max_growth - kSpace.size();
  if (end - begin > limit) {
    throw DataError("byte " + std::to_string(begin), "a text of " + std::to_string(end - begin) +
                                                         " bytes is too long for SentencePiece; the limit is " +
                                                         std::to_string(limit) + " with this model");
  }
  sentencepiece::ImmutableSentencePieceText result;
  const auto status = processor.Encode(text.substr(begin, end - begin), result.mutable_proto());
  if (!status.ok())
    throw FormatError(file_, std::string("SentencePiece cannot encode with this model: ") + status.message());
  for (std::size_t i = 0; i < result.pieces_size(); ++i) {
    const auto piece = result.pieces(static_cast<int>(i));
    out.ids.push_back(static_cast<std::int32_t>(piece.id()));
    if (!with_offsets) continue;
    const std::uint32_t from = std::min(begin + piece.begin(), end - 1);
    out.offsets.push_back(whole_characters(text, from, std::max(begin + piece.end(), from + 1)));
  }
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  bool at_start = model_.add_dummy_prefix || model_.remove_extra_whitespaces;
  for (const std::int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    std::string token = id_to_token(id);
    if (is_piece(id) && processor_.IsByte(id) && !literal_.contains(id)) {
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte_of_token(token))));
      at_start = false;
      continue;
    }
    if (is_piece(id) && !literal_.contains(id) && !is_special(id)) {
      if (at_start && token.starts_with(kSpace)) token.erase(0, kSpace.size());
      // Where white space is removed, all of it is in front.
      at_start = at_start && model_.remove_extra_whitespaces && token.empty();
      for (std::size_t at = 0; (at = token.find(kSpace, at)) != std::string::npos; ++at) {
        token.replace(at, kSpace.size(), " ");
      }
    }
    bytes += token;
  }
  return repair_utf8(bytes);
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(std::string_view bytes, const std::string& file,
                                              const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  return std::make_unique<SentencePieceTokenizer>(check_sentencepiece_file(bytes, file), file, special_tokens, options);
}

}  // namespace lora_train::tokenizer
