// tokenizer.model files made by hand, byte by byte.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <array>
#include <limits>
#include <random>

#include "lora_train/base/file.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"
#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/sentencepiece_bytes.h"

namespace lora_train::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

using namespace testing_support;

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& bytes) {
  return make_sentencepiece(bytes, "tokenizer.model", {}, {});
}

TEST(SentencePiece, MergesTheHighestScoreThenTheLeftmostAndDecodesSpaces) {
  const auto tokenizer = load_sentencepiece(model_bytes(kPieces));
  EXPECT_EQ(tokenizer->encode("aba").ids, (Ids{3, 4, 7})) << "ba beats ab";
  EXPECT_EQ(tokenizer->encode("aaa").ids, (Ids{3, 9, 4})) << "from the left";
  EXPECT_EQ(tokenizer->encode("").ids, Ids{});
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab  ba").ids), "ab  ba");
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 2}, true), "a") << "without the dummy space";
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 2}), "<s>a</s>");
}

TEST(SentencePiece, FindsUserDefinedButNoControlPiecesInText) {
  const auto tokenizer = load_sentencepiece(model_bytes(kPieces));
  const Encoding encoding = tokenizer->encode("a<u>b<s>", true);
  EXPECT_EQ(encoding.ids, (Ids{3, 4, 8, 5, 0})) << "one unknown token for the run <s>";
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{0, 1}, {0, 1}, {1, 4}, {4, 5}, {5, 8}}));
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(1));
}

TEST(SentencePiece, SideFilesSayWhatIsFoundInTextAndWhichStretchGetsTheDummySpace) {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.model", model_bytes(kPieces));
  write_text(folder / "special_tokens_map.json", R"({"eos_token": {"content": "</s>"}})");
  write_text(folder / "added_tokens.json", R"({"<new>": 10})");
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->encode("a</s><new>").ids, (Ids{3, 4, 2, 10}));
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(10));
  EXPECT_EQ(tokenizer->encode("a<new>b").ids, (Ids{3, 4, 10, 3, 5})) << "every stretch";
  write_text(folder / "tokenizer_config.json", R"({"legacy": false})");
  const auto newer = Tokenizer::load(folder.path());
  EXPECT_EQ(newer->encode("a<new>b").ids, (Ids{3, 4, 10, 5}));
  EXPECT_EQ(newer->encode("<new>b").ids, (Ids{10, 5}));
}

TEST(SentencePiece, AddedTokensThatContradictEachOtherNameTheirPlace) {
  for (const auto& [file, text, message] : std::vector<std::array<const char*, 3>>{
           {"tokenizer_config.json",
            R"({"added_tokens_decoder": {"10": {"content": "<new>"}, "11": {"content": "<new>"}}})",
            "tokenizer_config.json: added_tokens_decoder.11: added token \"<new>\" has id 11 here, but already has id "
            "10"},
           {"tokenizer_config.json", R"({"added_tokens_decoder": {"4": {"content": "<new>"}}})",
            "tokenizer_config.json: added_tokens_decoder.4: id 4 of added token \"<new>\" already belongs to"},
           {"added_tokens.json", R"({"<new>": 4})",
            "added_tokens.json: <new>: id 4 of added token \"<new>\" already belongs to"}}) {
    const TemporaryFolder folder;
    write_text(folder / "tokenizer.model", model_bytes(kPieces));
    write_text(folder / file, text);
    EXPECT_SAYS(refusal<FormatError>([&] { Tokenizer::load(folder.path()); }), message);
  }
}

// The reference is the library itself, given the whole text.
TEST(SentencePiece, PartsOfALongTextGiveTheTokensOfTheWhole) {
  const std::string bytes = model_bytes(with_bytes(256), kFallback);
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(bytes).ok());
  const auto tokenizer = load_sentencepiece(bytes);
  std::mt19937 random(11);
  const std::string alphabet[] = {"a", "b", "ab", " ", "<u>", "\xC3\xA9", "aa"};
  std::string text;
  while (text.size() < 300'000) text += alphabet[random() % 7];
  const Encoding encoding = tokenizer->encode(text, true);
  const std::vector<int> whole = library.EncodeAsIds(text);
  EXPECT_TRUE(encoding.ids == whole);
  EXPECT_EQ(tokenizer->decode(encoding.ids), text);
  std::uint32_t covered = 0;
  for (const auto& [first, last] : encoding.offsets) {
    ASSERT_LE(first, covered);
    ASSERT_LT(first, last);
    covered = last;
  }
  EXPECT_EQ(covered, text.size());
}

TEST(SentencePiece, UnigramTakesTheBestSumOfScores) {
  const auto tokenizer = load_sentencepiece(model_bytes(kPieces, kUnigram));
  EXPECT_EQ(tokenizer->encode("aba").ids, (Ids{3, 4, 7})) << "a, ba: -10; ab, a: -11";
  EXPECT_EQ(tokenizer->encode("aabb").ids, (Ids{3, 4, 6, 5}));
  const Encoding encoding = tokenizer->encode("a<u>\xC3\xA9 \xC3\xA9", true);
  EXPECT_EQ(encoding.ids, (Ids{3, 4, 8, 0, 3, 0}));
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{0, 1}, {0, 1}, {1, 4}, {4, 6}, {6, 7}, {7, 9}}));
}

TEST(SentencePiece, BytesOfACharacterShareItsRange) {
  const auto tokenizer = load_sentencepiece(model_bytes(with_bytes(256), kFallback));
  const Encoding encoding = tokenizer->encode("a\xC3\xA9", true);
  EXPECT_EQ(encoding.ids, (Ids{3, 4, 10 + 0xC3, 10 + 0xA9}));
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{0, 1}, {0, 1}, {1, 3}, {1, 3}}));
}

TEST(SentencePiece, NormalisedTextHasTheRangesOfTheInput) {
  const auto tokenizer =
      load_sentencepiece(model_bytes(kPieces, kUnigram, bytes_field(2, charsmap_bytes())));  // removes spaces
  const Encoding encoding = tokenizer->encode("  ba  b ", true);
  EXPECT_EQ(encoding.ids, (Ids{3, 5, 0, 5, 3, 5})) << "a became an unknown character and b";
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{2, 3}, {2, 3}, {3, 4}, {3, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(tokenizer->encode("  ").ids, Ids{});
  EXPECT_EQ(tokenizer->decode(Ids{3, 3, 5, 3, 5}), "b b") << "all leading white space";
}

TEST(SentencePiece, RealModelDecodesWhatItEncodes) {
  LORA_TRAIN_REQUIRE_DATA(model, "mistral/v3/tokenizer.model");
  LORA_TRAIN_REQUIRE_DATA(lines, "text/multilingual.txt");
  const auto tokenizer = load_sentencepiece(read_file(model));
  const std::string text = read_file(lines);
  EXPECT_TRUE(tokenizer->decode(tokenizer->encode(text).ids) == text);
}

TEST(SentencePiece, EveryTruncationIsRefusedAndEveryFlippedByteReadOrRefused) {
  const std::string bytes = model_bytes(kPieces);
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    EXPECT_THROW(load_sentencepiece(bytes.substr(0, at)), FormatError) << at;
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string broken = bytes;
      broken[at] = static_cast<char>(broken[at] ^ mask);
      refused += refusal<FormatError>([&] { load_sentencepiece(broken)->encode("abba <u>", true); }) != "accepted";
    }
  }
  EXPECT_GT(refused, 100);
}

struct BadCase {
  std::string bytes;
  const char* message;            // part of it
  const char* where = ": byte ";  // behind "tokenizer.model"; a prefix where it ends in "byte "
};

void expect_refused(const std::vector<BadCase>& cases) {
  for (const auto& [bytes, message, where] : cases) {
    SCOPED_TRACE(message);
    try {
      load_sentencepiece(bytes);
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      const std::string place = std::string("tokenizer.model") + where;
      EXPECT_EQ(place.ends_with("byte ") ? error.where().substr(0, place.size()) : error.where(), place);
      EXPECT_SAYS(error.message(), message);
    }
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

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(MalformedSentencePiece, BrokenMessagesAreRefusedAtTheByte) {
  const std::string good = model_bytes(kPieces);
  expect_refused({{"", "without pieces", ""},
                  {"hello", "not a SentencePiece model"},
                  {std::string("\x02\x00", 2), "field number out of range", ": byte 1"},
                  {good + "\x8A", "ends inside a number"},
                  {good + "\x0A\xFF", "ends inside a number"},
                  {good + "\x0A\x7F", "ends inside a field"},
                  {good + "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", "ends inside a field"},
                  {good + "\x08" + std::string(10, '\x80') + "\x01", "longer than 10 bytes"},
                  {good + "\x08" + std::string(9, '\xFF') + "\x02", "larger than 64 bits"},
                  {good + "\x0B", "unknown wire type 3"},
                  {good + "\x0F", "unknown wire type 7"},
                  {good + "\x15\x01", "ends inside a field"},
                  {good + varint_field(1, 5), "field 1 has the wrong type"}});
}

std::vector<Piece> with_nested(std::size_t count) {
  auto pieces = kPieces;
  for (std::size_t i = 1; i <= count; ++i) pieces.push_back({std::string(i, 'z'), 0, 4});
  return pieces;
}

TEST(MalformedSentencePiece, BrokenPiecesAreRefusedAtTheByte) {
  expect_refused({{with_fields(score_field(0)), "a piece without text"},
                  {with_fields(bytes_field(1, "\xE2\x96")), "not UTF-8"},
                  {with_fields(bytes_field(1, "\xED\xA0\x80")), "not UTF-8"},
                  {with_fields(bytes_field(1, std::string("a\0b", 3))), "a zero byte"},
                  {with_fields(varint_field(1, 3)), "field 1 has the wrong type"},
                  {with_fields(bytes_field(1, "z") + varint_field(2, 3)), "field 2 has the wrong"},
                  {with_fields(bytes_field(1, "z") + score_field(kNan)), "not a finite number"},
                  {with_fields(bytes_field(1, "z") + score_field(kInfinity)), "not a finite number"},
                  {with_fields(bytes_field(1, "z") + varint_field(3, 0)), "unknown piece type 0"},
                  {with_fields(bytes_field(1, "z") + varint_field(3, 7)), "unknown piece type 7"},
                  {with_piece({"a", 0, 1}), "\"a\" occurs twice"},
                  {with_piece({"a", 0, 3}), "\"a\" occurs twice"},
                  {with_piece({std::string(513, 'b'), 0, 1}), "more than 512 bytes"},
                  {bytes_field(1, bytes_field(1, "a")) + bytes_field(3, kIdentity), "trainer_spec", ""},
                  {bytes_field(1, bytes_field(1, "a")) + bytes_field(2, kBpe), "normalizer_spec", ""},
                  {model_bytes(with_nested(65)), "up to \"zzz", ""}});
}

// What the library says of pieces that the check lets through.
TEST(MalformedSentencePiece, WhatTheLibraryRefusesIsRefused) {
  expect_refused({{with_piece({"b", 0, 2}), "unk is already defined", ""},
                  {model_bytes({{"a", 0, 1}}), "unk is not defined", ""},
                  {with_piece({"<0x0A>", 0, 6}), "<0x0A>", ""},
                  {model_bytes(with_bytes(256, "<0x%02X"), kFallback), "is invalid", ""},
                  {model_bytes(with_bytes(255), kFallback), "not 256 byte pieces", ""},
                  {model_bytes({{"<unk>", 0, 2}}, kUnigram), "no pieces", ""}});
}

TEST(MalformedSentencePiece, BrokenTablesAreRefusedAtTheByte) {
  const auto table = [](const std::string& bytes) {
    return model_bytes(kPieces, kBpe, bytes_field(2, bytes) + kIdentity);
  };
  const std::string good = charsmap_bytes();
  auto past_end = charsmap_units(), no_string = past_end, inside = past_end, endless = past_end;
  past_end[kCharsmapLetter] = 512U << 10U | 0x100U | 'a';
  no_string[kCharsmapLetter ^ 1U] = 0x80000000U | 4U;
  inside[kCharsmapLetter ^ 1U] = 0x80000000U | 1U;
  endless[kCharsmapLetter] = (kCharsmapLetter ^ 256U) << 10U | 'a';
  expect_refused({{table(good.substr(0, 4)), "that does not have the size"},
                  {table(good.substr(0, 2000)), "that does not have the size"},
                  {table(std::string(8, '\0')), "that does not have the size"},
                  {table(good.substr(0, good.size() - 1)), "broken strings"},
                  {table(charsmap_bytes(charsmap_units(), std::string("\xC3\0", 2))), "broken strings"},
                  {table(charsmap_bytes({0, 0}, kCharsmapStrings)), "past its end"},
                  {table(charsmap_bytes(past_end)), "past its end"},
                  {table(charsmap_bytes(no_string)), "does not point to a string"},
                  {table(charsmap_bytes(inside)), "does not point to a string"},
                  {table(charsmap_bytes(endless)), "more than 32 bytes"}});
}

TEST(MalformedSentencePiece, WhatIsNotBuiltIsNamed) {
  expect_refused({{model_bytes(kPieces, varint_field(3, 9)), "type 9", ": trainer_spec.model_type"},
                  {model_bytes(kPieces, kBpe + std::string("\xC0\x01\x01", 3)), "not supported",
                   ": trainer_spec.treat_whitespace_as_suffix"},
                  {model_bytes(kPieces) + bytes_field(5, bytes_field(2, "map")), "table",
                   ": denormalizer_spec.precompiled_charsmap"}});
}

TEST(SentencePieceLimits, NestedPiecesAllBytesAndSelfTestsAreRead) {
  const auto tokenizer = load_sentencepiece(model_bytes(with_nested(64)));
  EXPECT_EQ(tokenizer->encode(std::string(100, 'z')).ids.size(), 3U) << "the dummy space, 64 and 36";
  EXPECT_NO_THROW(load_sentencepiece(model_bytes(with_bytes(256), kFallback)));
  const std::string sample = bytes_field(1, "ab") + bytes_field(2, "not what it gives");
  EXPECT_NO_THROW(load_sentencepiece(model_bytes(kPieces) + bytes_field(4, bytes_field(1, sample)))) << "not run";
}

}  // namespace
}  // namespace lora_train::tokenizer
