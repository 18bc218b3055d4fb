#include <sentencepiece_processor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "bpe/bpe.h"
#include "json/bpe_model.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"
#include "special_tokens.h"
#include "tokenizer_files.h"

// The library exports it but no header declares it; without it, every load writes to stderr.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace lora_train::tokenizer {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space inside pieces
constexpr int kLogNothingButFatal = 3;
// The library needs about 200 bytes per byte of text.
constexpr std::size_t kMaxBytesAtOnce = 1 << 16;

void load_processor(SentencePieceProcessor& processor, const std::string& bytes, const std::string& file) {
  sentencepiece::logging::SetMinLogLevel(kLogNothingButFatal);
  std::string error;
  try {
    const auto status = processor.LoadFromSerializedProto(bytes);
    if (status.ok()) return;
    error = status.message();
  } catch (const std::exception& exception) {  // from the library's tries
    error = exception.what();
  }
  throw FormatError(file, "SentencePiece refuses the model: " + error);
}

class SentencePieceTokenizer final : public FileTokenizer {
 public:
  SentencePieceTokenizer(SentencePieceFile model, const std::string& file, const SpecialTokens& special,
                         const TokenizerOptions& options)
      : model_(std::move(model)), file_(file), legacy_(special.legacy) {
    load_processor(processor_, model_.bytes, file_);
    num_model_tokens_ = processor_.GetPieceSize();
    for (std::int32_t id = 0; id < num_model_tokens_; ++id) {
      set_token(id, processor_.IdToPiece(id));
      if (processor_.IsUnknown(id) || processor_.IsControl(id)) special_.insert(id);
    }
    add_side_tokens(special, options);
    const auto known = [](int id) { return id < 0 ? std::nullopt : std::optional<std::int32_t>(id); };
    bos_id_ = known(processor_.bos_id());
    eos_id_ = known(processor_.eos_id());
    pad_id_ = known(processor_.pad_id());
    adds_bos_ = bos_id_.has_value();
    apply_special_tokens(special);
  }

  Encoding encode(std::string_view text, bool with_offsets) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;

 private:
  // Rarely needed: made on first use.
  struct Continuation {
    SentencePieceProcessor processor;  // adds no dummy space
    CutTable cuts{/*spaces_are_u2581=*/true};
  };

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
};

Encoding SentencePieceTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  Encoding out;
  for (const auto& part : in_text_.split(text)) {
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
    // normalizer_spec {add_dummy_prefix: false}: repeated messages are merged.
    load_processor(continuation_.processor, model_.bytes + std::string("\x1A\x02\x18\x00", 4), file_);
    for (std::int32_t id = 0; id < num_model_tokens_; ++id) {
      if (!processor_.IsControl(id) && !processor_.IsByte(id)) continuation_.cuts.add(spelling(id));
    }
    continuation_.cuts.build();
  });
  return continuation_;
}

// Cuts a long stretch where no BPE piece can cross. Other models encode it whole: the best choice at the end of a text
// can depend on its beginning, if only by rounding.
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
    throw DataError(fmt::format("byte {}", begin),
                    "a text of {} bytes is too long for SentencePiece; the limit is {} with this model", end - begin,
                    limit);
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
    std::string token = spelling(id);
    const bool is_piece = id >= 0 && id < num_model_tokens_ && !added_.contains(id);  // others are decoded as spelled
    if (is_piece && processor_.IsByte(id)) {
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte_of_token(token))));
      at_start = false;
      continue;
    }
    if (is_piece && !is_special(id)) {
      if (at_start && token.starts_with(kSpace)) token.erase(0, kSpace.size());
      // If white space is removed, it all counts as leading.
      at_start = at_start && model_.remove_extra_whitespaces && token.empty();
      for (std::size_t at = 0; (at = token.find(kSpace, at)) != std::string::npos; ++at) {
        token.replace(at, kSpace.size(), " ");
      }
    }
    bytes += token;
  }
  return repair_utf8(bytes);
}

constexpr std::size_t kMaxPieceBytes = 512;        // real pieces are far shorter; bounds the work for a bad file
constexpr std::size_t kMaxNestedUserDefined = 64;  // the library's limit for nested prefixes of a text
constexpr std::size_t kMaxCharsmapKeyBytes = 32;   // the library's limit for rules of its normalisation table

// One field of a protobuf message: a number, or bytes.
struct Field {
  std::uint32_t number = 0;
  unsigned wire = 0;  // 0 varint, 1 fixed64, 2 bytes, 5 fixed32
  std::uint64_t value = 0;
  std::string_view bytes;
};

// Walks the fields of one message inside the file.
class MessageReader {
 public:
  MessageReader(std::string_view file_bytes, std::string_view message, const std::string& file)
      : file_bytes_(file_bytes), message_(message), file_(file) {}

  bool next(Field& field) {
    if (at_ == message_.size()) return false;
    const std::uint64_t tag = varint();
    field = {static_cast<std::uint32_t>(tag >> 3U), static_cast<unsigned>(tag & 7U), 0, {}};
    if (field.number == 0 || (tag >> 32U) != 0) fail("field number out of range");
    switch (field.wire) {
      case 0: field.value = varint(); break;
      case 1: field.bytes = take(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.bytes = take(4); break;
      default: fail(fmt::format("unknown wire type {}", field.wire));
    }
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    const auto position = static_cast<std::size_t>(message_.data() - file_bytes_.data()) + at_;
    throw FormatError(fmt::format("{}: byte {}", file_, position),
                      "not a SentencePiece model: {}; is the file complete? Download it again", what);
  }

  std::string_view bytes_of(const Field& field) const { return checked(field, 2).bytes; }
  std::uint64_t number_of(const Field& field) const { return checked(field, 0).value; }
  float float_of(const Field& field) const {
    float value = 0.0F;
    std::memcpy(&value, checked(field, 5).bytes.data(), 4);
    return value;
  }
  std::size_t at() const { return at_; }

 private:
  const Field& checked(const Field& field, unsigned wire) const {
    if (field.wire != wire) fail(fmt::format("field {} has the wrong type", field.number));
    return field;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == message_.size()) fail("it ends inside a number");
      const auto byte = static_cast<unsigned char>(message_[at_++]);
      if (shift == 63 && (byte & 0x7FU) > 1) fail("a number is larger than 64 bits");
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is longer than 10 bytes");
  }

  std::string_view take(std::uint64_t length) {
    if (length > message_.size() - at_) fail("it ends inside a field");
    const std::string_view part = message_.substr(at_, static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return part;
  }

  std::string_view file_bytes_, message_;
  const std::string& file_;
  std::size_t at_ = 0;
};

[[noreturn]] void not_supported(const std::string& file, const std::string& field, const std::string& what) {
  throw FormatError(file + ": " + field, what + " is not supported; use the model's tokenizer.json if it has one");
}

struct StoredPieces {
  std::unordered_set<std::string_view> texts;
  std::vector<std::string_view> user_defined;
};

void check_piece(MessageReader reader, StoredPieces& pieces) {
  constexpr std::uint64_t kUserDefined = 4;
  std::string_view text;
  std::uint64_t type = 1;
  for (Field field; reader.next(field);) {
    if (field.number == 1) text = reader.bytes_of(field);
    if (field.number == 2 && !std::isfinite(reader.float_of(field))) reader.fail("a score that is not a finite number");
    if (field.number == 3) type = reader.number_of(field);
  }
  if (text.empty()) reader.fail("a piece without text");
  if (text.size() > kMaxPieceBytes) reader.fail("a piece of more than 512 bytes");
  if (find_invalid_utf8(text)) reader.fail("a piece that is not UTF-8");
  if (text.find('\0') != std::string_view::npos) reader.fail("a piece with a zero byte");
  if (type < 1 || type > 6) reader.fail(fmt::format("unknown piece type {}", type));
  if (!pieces.texts.insert(text).second) reader.fail(fmt::format("piece \"{}\" occurs twice", text));
  if (type == kUserDefined) pieces.user_defined.push_back(text);
}

// The library collects the user-defined pieces at the start of a text in a fixed-size array, unchecked.
void check_user_defined(std::vector<std::string_view> texts, const std::string& file) {
  std::sort(texts.begin(), texts.end());
  std::vector<std::string_view> nested;  // each begins with the previous one
  for (const std::string_view text : texts) {
    while (!nested.empty() && !text.starts_with(nested.back())) nested.pop_back();
    nested.push_back(text);
    if (nested.size() > kMaxNestedUserDefined) {
      throw FormatError(file, "more than 64 user-defined pieces each begin with the one before, up to \"" +
                                  std::string(text) + "\"; SentencePiece cannot read that");
    }
  }
}

// The table is a double-array trie, which the library walks unchecked, and the zero-terminated strings that its leaves
// point to. Checks everything that a text can reach, level by level.
void check_charsmap(const MessageReader& reader, std::string_view table, SentencePieceFile& out) {
  if (table.empty()) return;
  out.has_charsmap = true;
  std::uint32_t trie_bytes = 0;
  if (table.size() > sizeof trie_bytes) std::memcpy(&trie_bytes, table.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= table.size() - sizeof trie_bytes) {
    reader.fail("a normalisation table that does not have the size that it states");
  }
  std::vector<std::uint32_t> units(trie_bytes / 4);
  std::memcpy(units.data(), table.data() + sizeof trie_bytes, trie_bytes);
  const std::string_view strings = table.substr(sizeof trie_bytes + trie_bytes);
  if (strings.back() != '\0' || find_invalid_utf8(strings)) reader.fail("a normalisation table with broken strings");
  for (std::size_t at = 0; at < strings.size(); ++at) {
    const std::size_t length = strings.find('\0', at) - at;
    out.max_growth = std::max(out.max_growth, 3 * length);
    at += length;
  }
  std::vector<std::uint32_t> nodes = {0};
  for (std::size_t key_bytes = 0; !nodes.empty(); ++key_bytes) {
    if (key_bytes > kMaxCharsmapKeyBytes) reader.fail("a normalisation table with rules of more than 32 bytes");
    std::vector<std::uint32_t> next;
    for (const std::uint32_t node : nodes) {
      const std::uint32_t unit = units[node];
      const std::uint32_t children = node ^ (unit >> 10U) << ((unit & 0x200U) >> 6U);
      if ((children | 0xFFU) >= units.size()) reader.fail("a normalisation table that points past its end");
      const std::uint32_t string = units[children] & 0x7FFFFFFFU;
      const bool has_string = key_bytes > 0 && (unit & 0x100U) != 0;
      if (has_string && (string >= strings.size() || is_continuation(strings[string]))) {
        reader.fail("a normalisation table that does not point to a string");
      }
      for (std::uint32_t byte = 0; byte < 256; ++byte) {
        if ((units[children ^ byte] & 0x800000FFU) == byte) next.push_back(children ^ byte);
      }
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    nodes = std::move(next);
  }
}

void check_trainer_spec(MessageReader reader, SentencePieceFile& out, const std::string& file) {
  for (Field field; reader.next(field);) {
    if (field.number == 3) {
      const std::uint64_t type = reader.number_of(field);
      if (type < 1 || type > 4) not_supported(file, "trainer_spec.model_type", fmt::format("type {}", type));
      out.is_bpe = type == 2;
    }
    if (field.number == 24 && reader.number_of(field) != 0) {
      not_supported(file, "trainer_spec.treat_whitespace_as_suffix", "true");
    }
    if (field.number == 35) out.byte_fallback = reader.number_of(field) != 0;
  }
}

void check_normalizer_spec(MessageReader reader, SentencePieceFile& out) {
  for (Field field; reader.next(field);) {
    if (field.number == 2) check_charsmap(reader, reader.bytes_of(field), out);
    if (field.number == 3) out.add_dummy_prefix = reader.number_of(field) != 0;
    if (field.number == 4) out.remove_extra_whitespaces = reader.number_of(field) != 0;
  }
}

void check_denormalizer_spec(MessageReader reader, const std::string& file) {
  for (Field field; reader.next(field);) {
    if (field.number == 2 && !reader.bytes_of(field).empty()) {
      not_supported(file, "denormalizer_spec.precompiled_charsmap", "a normalisation table");
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(std::string_view bytes, const std::string& file,
                                              const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  return std::make_unique<SentencePieceTokenizer>(check_sentencepiece_file(bytes, file), file, special_tokens, options);
}

SentencePieceFile check_sentencepiece_file(std::string_view bytes, const std::string& file) {
  SentencePieceFile out;
  StoredPieces pieces;
  MessageReader reader(bytes, bytes, file);
  bool has_trainer = false, has_normalizer = false;
  std::size_t begin = 0;
  for (Field field; reader.next(field);) {
    const std::string_view whole = bytes.substr(begin, reader.at() - begin);
    begin = reader.at();
    if (field.number == 4 || field.number > 5) continue;  // self-test data and extensions do not affect ids
    const MessageReader inner(bytes, reader.bytes_of(field), file);
    if (field.number == 1) check_piece(inner, pieces);
    if (field.number == 2) check_trainer_spec(inner, out, file);
    if (field.number == 3) check_normalizer_spec(inner, out);
    if (field.number == 5) check_denormalizer_spec(inner, file);
    if (field.number < 4) out.bytes += whole;
    has_trainer = has_trainer || field.number == 2;
    has_normalizer = has_normalizer || field.number == 3;
  }
  if (pieces.texts.empty()) throw FormatError(file, "a SentencePiece model without pieces; is the file complete?");
  if (!has_trainer || !has_normalizer) {
    throw FormatError(file, "a SentencePiece model without trainer_spec or normalizer_spec; is the file complete?");
  }
  out.user_defined.insert(pieces.user_defined.begin(), pieces.user_defined.end());
  check_user_defined(std::move(pieces.user_defined), file);
  return out;
}

}  // namespace lora_train::tokenizer
