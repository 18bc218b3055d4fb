#include "sentencepiece_model.h"

#include <cmath>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

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
      case 0:
        field.value = varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        fail("unknown wire type " + std::to_string(field.wire));
    }
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    const auto position = static_cast<std::size_t>(message_.data() - file_bytes_.data()) + at_;
    throw FormatError(file_ + ": byte " + std::to_string(position),
                      "not a SentencePiece model: " + what + "; is the file whole? Download it again");
  }

  std::string_view bytes_of(const Field& field) const {
    if (field.wire != 2) fail("field " + std::to_string(field.number) + " has the wrong type");
    return field.bytes;
  }
  std::uint64_t number_of(const Field& field) const {
    if (field.wire != 0) fail("field " + std::to_string(field.number) + " has the wrong type");
    return field.value;
  }
  float float_of(const Field& field) const {
    if (field.wire != 5) fail("field " + std::to_string(field.number) + " has the wrong type");
    float value = 0.0F;
    std::memcpy(&value, field.bytes.data(), 4);
    return value;
  }
  std::string text_of(const Field& field) const {
    const std::string_view text = bytes_of(field);
    if (find_invalid_utf8(text)) fail("a text that is not UTF-8");
    return std::string(text);
  }

 private:
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

[[noreturn]] void not_built(const std::string& file, const std::string& field, const std::string& what) {
  throw FormatError(file + ": " + field, what + " is not built; use the model's tokenizer.json if it has one");
}

SentencePiece read_piece(MessageReader reader) {
  SentencePiece piece;
  for (Field field; reader.next(field);) {
    if (field.number == 1) piece.text = reader.text_of(field);
    if (field.number == 2) piece.score = reader.float_of(field);
    if (!std::isfinite(piece.score)) reader.fail("a score that is no finite number");
    if (field.number != 3) continue;
    const std::uint64_t type = reader.number_of(field);
    if (type < 1 || type > 6) reader.fail("unknown piece type " + std::to_string(type));
    piece.type = static_cast<PieceType>(type);
  }
  if (piece.text.empty()) reader.fail("a piece without text");
  return piece;
}

void read_trainer_spec(MessageReader reader, SentencePieceModel& model, const std::string& file) {
  std::uint64_t model_type = 1;  // UNIGRAM is the default of the format
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case 3:
        model_type = reader.number_of(field);
        break;
      case 24:
        if (reader.number_of(field) != 0) not_built(file, "trainer_spec.treat_whitespace_as_suffix", "true");
        break;
      case 35:
        model.byte_fallback = reader.number_of(field) != 0;
        break;
      case 46:
        model.bos_piece = reader.text_of(field);
        break;
      case 47:
        model.eos_piece = reader.text_of(field);
        break;
      case 48:
        model.pad_piece = reader.text_of(field);
        break;
      default:
        break;
    }
  }
  const char* names[] = {"?", "UNIGRAM", "BPE", "WORD", "CHAR"};
  if (model_type != 2) {
    not_built(file, "trainer_spec.model_type",
              model_type < 5 ? names[model_type] : "type " + std::to_string(model_type));
  }
}

void read_normalizer_spec(MessageReader reader, SentencePieceModel& model, const std::string& file) {
  bool removes_spaces = true;
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case 2:
        if (!reader.bytes_of(field).empty()) {
          not_built(file, "normalizer_spec.precompiled_charsmap", "a normalisation table");
        }
        break;
      case 3:
        model.add_dummy_prefix = reader.number_of(field) != 0;
        break;
      case 4:
        removes_spaces = reader.number_of(field) != 0;
        break;
      case 5:
        model.escape_whitespaces = reader.number_of(field) != 0;
        break;
      default:
        break;
    }
  }
  if (removes_spaces) not_built(file, "normalizer_spec.remove_extra_whitespaces", "true");
}

void check_denormalizer_spec(MessageReader reader, const std::string& file) {
  for (Field field; reader.next(field);) {
    if (field.number == 2 && !reader.bytes_of(field).empty()) {
      not_built(file, "denormalizer_spec.precompiled_charsmap", "a normalisation table");
    }
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file) {
  SentencePieceModel model;
  bool has_trainer = false, has_normalizer = false;
  MessageReader reader(bytes, bytes, file);
  for (Field field; reader.next(field);) {
    if (field.number == 4 || field.number > 5) continue;  // self-test data and extensions decide no ids
    const MessageReader inner(bytes, reader.bytes_of(field), file);
    if (field.number == 1) model.pieces.push_back(read_piece(inner));
    if (field.number == 2) read_trainer_spec(inner, model, file);
    if (field.number == 3) read_normalizer_spec(inner, model, file);
    if (field.number == 5) check_denormalizer_spec(inner, file);
    has_trainer = has_trainer || field.number == 2;
    has_normalizer = has_normalizer || field.number == 3;
  }
  if (model.pieces.empty()) throw FormatError(file, "a SentencePiece model without pieces; is the file whole?");
  if (!has_trainer) not_built(file, "trainer_spec", "a model without it (UNIGRAM by default)");
  if (!has_normalizer) not_built(file, "normalizer_spec", "a model without it (removes extra white space by default)");
  return model;
}

}  // namespace lora_train::tokenizer
