#include <gtest/gtest.h>

#include <random>

#include "lora_train/base/utf8.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/loaded_tokenizer.h"
#include "support/test_data.h"
#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/sentencepiece_bytes.h"

namespace lora_train::tokenizer {
namespace {

using testing_support::loaded_tokenizer;

// Pieces joined; fails where a piece holds a part of a character.
std::string streamed(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  TextStream stream(tokenizer);
  std::string text;
  for (const auto id : ids) {
    const std::string piece = stream.push(id);
    EXPECT_FALSE(find_invalid_utf8(piece));
    text += piece;
  }
  return text + stream.finish();
}

void expect_same_as_decode(const Tokenizer& tokenizer) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int32_t> any(0, tokenizer.vocab_size() - 1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int32_t> ids(40);
    for (auto& id : ids) do
        id = any(random);
      while (tokenizer.id_to_token(id).starts_with("<0x"));  // bytes: below
    ASSERT_EQ(streamed(tokenizer, ids), tokenizer.decode(ids, true)) << "round " << round;
  }
  for (const char* text :
       {"  two spaces, 你好 and 😀👩‍👩‍👧 é\n\n", "▁ under", "a\xEF\xBF\xBD b", " x"}) {
    const auto ids = tokenizer.encode(text).ids;
    ASSERT_EQ(streamed(tokenizer, ids), tokenizer.decode(ids, true));
  }
}

TEST(TextStream, JoinsToTheDecodedText) {
  LORA_TRAIN_REQUIRE_DATA(byte_level, "qwen2.5");
  LORA_TRAIN_REQUIRE_DATA(mistral, "mistral/v3");
  expect_same_as_decode(loaded_tokenizer(byte_level));
  expect_same_as_decode(loaded_tokenizer(mistral));
  expect_same_as_decode(loaded_tokenizer(mistral, TokenizerFile::kSentencePieceModel));
}

TEST(TextStream, JoinsToTheDecodedTextForUnigram) {
  const auto tokenizer = make_sentencepiece(
      testing_support::model_bytes(testing_support::kPieces, testing_support::kUnigram), "tokenizer.model", {}, {});
  expect_same_as_decode(*tokenizer);
}

TEST(TextStream, KeepsWhatWasShownWhenBytesOfNoCharacterFollow) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v3");
  const Tokenizer& tokenizer = loaded_tokenizer(folder);
  std::vector<std::int32_t> ids;
  for (const char* token : {"▁a", "<0x4A>", "<0xC3>", "b"}) ids.push_back(tokenizer.token_to_id(token).value());
  const std::string broken = "\xEF\xBF\xBD";
  ASSERT_EQ(tokenizer.decode(ids), "a" + broken + broken + "b");
  EXPECT_EQ(streamed(tokenizer, ids), "aJ" + broken + "b");
}

TEST(TextStream, HoldsACharacterUntilItIsWholeAndLeavesSpecialTokensOut) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen2.5");
  const Tokenizer& tokenizer = loaded_tokenizer(folder);
  const auto ids = tokenizer.encode("\xF0\x9F\xAB\xA0\xF0\x9F\xAB\xA1").ids;  // several tokens each
  ASSERT_GT(ids.size(), 3U);
  TextStream stream(tokenizer), cut(tokenizer);
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.push(*tokenizer.token_to_id("<|im_end|>")), "");
  std::string rest;
  for (std::size_t i = 1; i < ids.size(); ++i) rest += stream.push(ids[i]);
  EXPECT_EQ(rest, "\xF0\x9F\xAB\xA0\xF0\x9F\xAB\xA1");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(cut.push(ids[0]), "");
  EXPECT_EQ(cut.finish(), kReplacementChar) << "it will never be a character";
  EXPECT_EQ(cut.finish(), "");
}

TEST(StopStrings, CutsAtTheFirstOneHoweverItIsSplit) {
  for (const std::size_t size : {1UL, 2UL, 3UL, 50UL}) {
    StopStrings stop({"\n\nQ:", "END"});
    const std::string text = "an answer\n\nwith EN and\n\nQ: more END";
    std::string shown;
    for (std::size_t at = 0; at < text.size(); at += size) shown += stop.push(text.substr(at, size));
    EXPECT_TRUE(stop.is_found());
    EXPECT_EQ(shown + stop.finish(), "an answer\n\nwith EN and") << size;
  }
}

TEST(StopStrings, HoldsBackOnlyWhatMayBecomeOne) {
  StopStrings stop({"###"}), none({});
  EXPECT_EQ(stop.push("a##"), "a");
  EXPECT_EQ(stop.push("b#"), "##b");
  EXPECT_FALSE(stop.is_found());
  EXPECT_EQ(stop.finish(), "#");
  EXPECT_EQ(none.push("a###"), "a###");
}

}  // namespace
}  // namespace lora_train::tokenizer
