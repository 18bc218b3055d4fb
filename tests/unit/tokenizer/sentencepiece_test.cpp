// tokenizer.model files made by hand, byte by byte.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <random>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"
#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/sentencepiece_bytes.h"

namespace lora_train::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

using testing_support::bytes_field;
using testing_support::charsmap_bytes;
using testing_support::kFallback;
using testing_support::kPieces;
using testing_support::kUnigram;
using testing_support::model_bytes;
using testing_support::with_bytes;

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& bytes) {
  return make_sentencepiece(bytes, "tokenizer.model", {}, {});
}

TEST(SentencePiece, MergesTheHighestScoreThenTheLeftmost) {
  const auto tokenizer = load_sentencepiece(model_bytes(kPieces));
  EXPECT_EQ(tokenizer->encode("aba").ids, (Ids{3, 4, 7})) << "ba beats ab";
  EXPECT_EQ(tokenizer->encode("aaa").ids, (Ids{3, 9, 4})) << "from the left";
  EXPECT_EQ(tokenizer->encode("").ids, Ids{});
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

TEST(SentencePiece, DecodesSpacesAndDropsTheDummyOne) {
  const auto tokenizer = load_sentencepiece(model_bytes(kPieces));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab  ba").ids), "ab  ba");
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 2}, true), "a");
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 2}), "<s>a</s>");
}

TEST(SentencePiece, SpecialTokensOfSideFilesAreFoundInText) {
  const testing_support::TemporaryFolder folder;
  testing_support::write_text(folder / "tokenizer.model", model_bytes(kPieces));
  testing_support::write_text(folder / "special_tokens_map.json", R"({"eos_token": {"content": "</s>"}})");
  testing_support::write_text(folder / "added_tokens.json", R"({"<new>": 10})");
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->encode("a</s><new>").ids, (Ids{3, 4, 2, 10}));
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(10));
}

TEST(SentencePiece, AddedTokensThatContradictEachOtherNameTheirPlace) {
  const auto expect_refused = [](const char* file, const std::string& text, const char* place, const char* message) {
    const testing_support::TemporaryFolder folder;
    testing_support::write_text(folder / "tokenizer.model", model_bytes(kPieces));
    testing_support::write_text(folder / file, text);
    try {
      Tokenizer::load(folder.path());
      ADD_FAILURE() << "accepted: " << text;
    } catch (const FormatError& error) {
      EXPECT_EQ(error.where(), (folder / file).string() + ": " + place);
      EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    }
  };
  expect_refused("tokenizer_config.json",
                 R"({"added_tokens_decoder": {"10": {"content": "<new>"}, "11": {"content": "<new>"}}})",
                 "added_tokens_decoder.11", "already has id 10");
  expect_refused("tokenizer_config.json", R"({"added_tokens_decoder": {"4": {"content": "<new>"}}})",
                 "added_tokens_decoder.4", "already belongs to");
  expect_refused("added_tokens.json", R"({"<new>": 4})", "<new>", "already belongs to");
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
  while (text.size() < 500'000) text += alphabet[random() % 7];
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

TEST(SentencePiece, OnlyTheFirstStretchGetsTheDummySpaceWithoutLegacy) {
  const testing_support::TemporaryFolder folder;
  testing_support::write_text(folder / "tokenizer.model", model_bytes(kPieces));
  testing_support::write_text(folder / "added_tokens.json", R"({"<new>": 10})");
  EXPECT_EQ(Tokenizer::load(folder.path())->encode("a<new>b").ids, (Ids{3, 4, 10, 3, 5}));
  testing_support::write_text(folder / "tokenizer_config.json", R"({"legacy": false})");
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->encode("a<new>b").ids, (Ids{3, 4, 10, 5}));
  EXPECT_EQ(tokenizer->encode("<new>b").ids, (Ids{10, 5}));
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

TEST(SentencePiece, SelfTestsAreNotRun) {
  const std::string sample = bytes_field(1, "ab") + bytes_field(2, "not what it gives");
  EXPECT_NO_THROW(load_sentencepiece(model_bytes(kPieces) + bytes_field(4, bytes_field(1, sample))));
}

TEST(SentencePiece, RealModelDecodesWhatItEncodes) {
  LORA_TRAIN_REQUIRE_DATA(model, "mistral/v3/tokenizer.model");
  LORA_TRAIN_REQUIRE_DATA(lines, "text/multilingual.txt");
  const auto tokenizer = load_sentencepiece(read_file(model));
  const std::string text = read_file(lines);
  EXPECT_TRUE(tokenizer->decode(tokenizer->encode(text).ids) == text);
}

TEST(SentencePiece, EveryTruncationIsRefused) {
  const std::string bytes = model_bytes(kPieces);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(load_sentencepiece(bytes.substr(0, length)), FormatError) << length;
  }
}

TEST(SentencePiece, EveryFlippedByteIsReadOrRefused) {
  const std::string bytes = model_bytes(kPieces);
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string broken = bytes;
      broken[at] = static_cast<char>(broken[at] ^ mask);
      try {
        load_sentencepiece(broken)->encode("abba <u>", true);
      } catch (const FormatError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace lora_train::tokenizer
