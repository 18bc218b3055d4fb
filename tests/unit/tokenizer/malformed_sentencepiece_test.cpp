// tokenizer.model files that are wrong in one place each: the error names it.
#include <gtest/gtest.h>

#include <limits>

#include "lora_train/base/error.h"
#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/sentencepiece_bytes.h"

namespace lora_train::tokenizer {
namespace {

using testing_support::bytes_field;
using testing_support::charsmap_bytes;
using testing_support::charsmap_units;
using testing_support::kBpe;
using testing_support::kCharsmapLetter;
using testing_support::kCharsmapStrings;
using testing_support::kFallback;
using testing_support::kIdentity;
using testing_support::kPieces;
using testing_support::kUnigram;
using testing_support::model_bytes;
using testing_support::Piece;
using testing_support::varint_field;
using testing_support::with_bytes;

struct BadCase {
  const char* name;
  std::string bytes;
  const char* where;    // behind "tokenizer.model"; a prefix where it ends in "byte "
  const char* message;  // part of it
};

void PrintTo(const BadCase& c, std::ostream* out) { *out << c.name; }

class BadSentencePieceModel : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadSentencePieceModel, IsRefusedByName) {
  const BadCase& bad = GetParam();
  try {
    make_sentencepiece(bad.bytes, "tokenizer.model", {}, {});
    FAIL() << "accepted";
  } catch (const FormatError& error) {
    const std::string where = std::string("tokenizer.model") + bad.where;
    if (where.ends_with("byte ")) {
      EXPECT_TRUE(error.where().starts_with(where)) << error.where();
    } else {
      EXPECT_EQ(error.where(), where);
    }
    EXPECT_NE(error.message().find(bad.message), std::string::npos) << error.message();
    EXPECT_EQ(error.exit_code(), ExitCode::kFormat);
  }
}

// The good model with the piece at index 5 replaced.
std::string with_piece(const Piece& piece) {
  auto pieces = kPieces;
  pieces[5] = piece;
  return model_bytes(pieces);
}

// The good model with one more piece message, given field by field.
std::string with_fields(const std::string& fields) { return bytes_field(1, fields) + model_bytes(kPieces); }

std::string score_field(float score) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return "\x15" + bytes;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<BadCase> broken_messages() {
  const std::string good = model_bytes(kPieces);
  return {
      {"Empty", "", "", "without pieces"},
      {"Text", "hello", ": byte ", "not a SentencePiece model"},
      {"FieldZero", std::string("\x02\x00", 2), ": byte 1", "field number out of range"},
      {"EndsInTag", good + "\x8A", ": byte ", "ends inside a number"},
      {"EndsInLength", good + "\x0A\xFF", ": byte ", "ends inside a number"},
      {"LengthBeyondFile", good + "\x0A\x7F", ": byte ", "ends inside a field"},
      {"HugeLength", good + "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", ": byte ", "ends inside a field"},
      {"NumberOf11Bytes", good + "\x08" + std::string(10, '\x80') + "\x01", ": byte ", "longer than 10 bytes"},
      {"NumberOver64Bits", good + "\x08" + std::string(9, '\xFF') + "\x02", ": byte ", "larger than 64 bits"},
      {"GroupWireType", good + "\x0B", ": byte ", "unknown wire type 3"},
      {"WireTypeSeven", good + "\x0F", ": byte ", "unknown wire type 7"},
      {"FixedPastEnd", good + "\x15\x01", ": byte ", "ends inside a field"},
      {"PieceIsNumber", good + varint_field(1, 5), ": byte ", "field 1 has the wrong type"},
  };
}

std::vector<Piece> with_nested(std::size_t count) {
  auto pieces = kPieces;
  for (std::size_t i = 1; i <= count; ++i) pieces.push_back({std::string(i, 'z'), 0, 4});
  return pieces;
}

std::vector<BadCase> broken_pieces() {
  return {
      {"NoText", with_fields(score_field(0)), ": byte ", "a piece without text"},
      {"TextNotUtf8", with_fields(bytes_field(1, "\xE2\x96")), ": byte ", "not UTF-8"},
      {"Surrogate", with_fields(bytes_field(1, "\xED\xA0\x80")), ": byte ", "not UTF-8"},
      {"ZeroByte", with_fields(bytes_field(1, std::string("a\0b", 3))), ": byte ", "a zero byte"},
      {"TextIsNumber", with_fields(varint_field(1, 3)), ": byte ", "field 1 has the wrong type"},
      {"ScoreIsNumber", with_fields(bytes_field(1, "z") + varint_field(2, 3)), ": byte ", "field 2 has the wrong"},
      {"ScoreNan", with_fields(bytes_field(1, "z") + score_field(kNan)), ": byte ", "not a finite number"},
      {"ScoreInfinite", with_fields(bytes_field(1, "z") + score_field(kInfinity)), ": byte ", "not a finite number"},
      {"TypeZero", with_fields(bytes_field(1, "z") + varint_field(3, 0)), ": byte ", "unknown piece type 0"},
      {"TypeSeven", with_fields(bytes_field(1, "z") + varint_field(3, 7)), ": byte ", "unknown piece type 7"},
      {"Twice", with_piece({"a", 0, 1}), ": byte ", "\"a\" occurs twice"},
      {"TwiceAsControl", with_piece({"a", 0, 3}), ": byte ", "\"a\" occurs twice"},
      {"TooLong", with_piece({std::string(513, 'b'), 0, 1}), ": byte ", "more than 512 bytes"},
      {"NoTrainerSpec", bytes_field(1, bytes_field(1, "a")) + bytes_field(3, kIdentity), "", "trainer_spec"},
      {"NoNormalizerSpec", bytes_field(1, bytes_field(1, "a")) + bytes_field(2, kBpe), "", "normalizer_spec"},
      {"Nested", model_bytes(with_nested(65)), "",
       "up to \""
       "zzz"},
  };
}

// What the library says of pieces that the check lets through.
std::vector<BadCase> refused_by_the_library() {
  return {
      {"SecondUnknown", with_piece({"b", 0, 2}), "", "unk is already defined"},
      {"NoUnknown", model_bytes({{"a", 0, 1}}), "", "unk is not defined"},
      {"ByteWithoutFallback", with_piece({"<0x0A>", 0, 6}), "", "<0x0A>"},
      {"ByteMisspelled", model_bytes(with_bytes(256, "<0x%02X"), kFallback), "", "is invalid"},
      {"BytesMissing", model_bytes(with_bytes(255), kFallback), "", "not 256 byte pieces"},
      {"UnigramWithoutPieces", model_bytes({{"<unk>", 0, 2}}, kUnigram), "", "no pieces"},
  };
}

std::vector<BadCase> broken_tables() {
  const auto table = [](const std::string& bytes) {
    return model_bytes(kPieces, kBpe, bytes_field(2, bytes) + kIdentity);
  };
  const std::string good = charsmap_bytes();
  auto past_end = charsmap_units(), no_string = past_end, inside = past_end, endless = past_end;
  past_end[kCharsmapLetter] = 512U << 10U | 0x100U | 'a';
  no_string[kCharsmapLetter ^ 1U] = 0x80000000U | 4U;
  inside[kCharsmapLetter ^ 1U] = 0x80000000U | 1U;
  endless[kCharsmapLetter] = (kCharsmapLetter ^ 256U) << 10U | 'a';
  return {
      {"TableOfFourBytes", table(good.substr(0, 4)), ": byte ", "that does not have the size"},
      {"TableCut", table(good.substr(0, 2000)), ": byte ", "that does not have the size"},
      {"TableWithoutTrie", table(std::string(8, '\0')), ": byte ", "that does not have the size"},
      {"StringWithoutEnd", table(good.substr(0, good.size() - 1)), ": byte ", "broken strings"},
      {"StringNotUtf8", table(charsmap_bytes(charsmap_units(), std::string("\xC3\0", 2))), ": byte ", "broken strings"},
      {"TrieTooSmall", table(charsmap_bytes({0, 0}, kCharsmapStrings)), ": byte ", "past its end"},
      {"TriePastEnd", table(charsmap_bytes(past_end)), ": byte ", "past its end"},
      {"NoString", table(charsmap_bytes(no_string)), ": byte ", "does not point to a string"},
      {"InsideACharacter", table(charsmap_bytes(inside)), ": byte ", "does not point to a string"},
      {"Endless", table(charsmap_bytes(endless)), ": byte ", "more than 32 bytes"},
  };
}

std::vector<BadCase> not_built() {
  return {
      {"TypeNine", model_bytes(kPieces, varint_field(3, 9)), ": trainer_spec.model_type", "type 9"},
      {"SpaceAsSuffix", model_bytes(kPieces, kBpe + std::string("\xC0\x01\x01", 3)),
       ": trainer_spec.treat_whitespace_as_suffix", "not supported"},
      {"Denormalizer", model_bytes(kPieces) + bytes_field(5, bytes_field(2, "map")),
       ": denormalizer_spec.precompiled_charsmap", "table"},
  };
}

std::string name_of(const ::testing::TestParamInfo<BadCase>& c) { return c.param.name; }

INSTANTIATE_TEST_SUITE_P(Messages, BadSentencePieceModel, ::testing::ValuesIn(broken_messages()), name_of);
INSTANTIATE_TEST_SUITE_P(Pieces, BadSentencePieceModel, ::testing::ValuesIn(broken_pieces()), name_of);
INSTANTIATE_TEST_SUITE_P(Library, BadSentencePieceModel, ::testing::ValuesIn(refused_by_the_library()), name_of);
INSTANTIATE_TEST_SUITE_P(Tables, BadSentencePieceModel, ::testing::ValuesIn(broken_tables()), name_of);
INSTANTIATE_TEST_SUITE_P(NotBuilt, BadSentencePieceModel, ::testing::ValuesIn(not_built()), name_of);

TEST(SentencePieceLimits, AsManyNestedPiecesAsTheLibraryHasRoomForAreRead) {
  const auto tokenizer = make_sentencepiece(model_bytes(with_nested(64)), "tokenizer.model", {}, {});
  EXPECT_EQ(tokenizer->encode(std::string(100, 'z')).ids.size(), 3U) << "the dummy space, 64 and 36";
}

TEST(SentencePieceBytes, AllOfThemAreEnough) {
  EXPECT_NO_THROW(make_sentencepiece(model_bytes(with_bytes(256), kFallback), "tokenizer.model", {}, {}));
}

}  // namespace
}  // namespace lora_train::tokenizer
