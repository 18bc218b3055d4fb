#include "output/answers.h"

#include <gtest/gtest.h>

#include "unit/data/byte_tokenizer.h"

namespace lora_train::cli {
namespace {

using data::ByteTokenizer;

class Collected : public testing::Test {
 protected:
  AnswerCollector make(AnswerOptions options, bool streams = false) {
    AnswerCollector::Callbacks callbacks;
    if (streams) callbacks.on_text = [&](std::string_view text) { shown_ += "[" + std::string(text) + "]"; };
    callbacks.on_answers = [&](std::size_t prompt, const Answers& answers) { answers_.emplace(prompt, answers); };
    return {tokenizer_, std::move(options), std::move(callbacks)};
  }
  // Tokens of a text and an end token, as the engine would bring them.
  static void answer(AnswerCollector& collector, std::size_t prompt, bool is_base, const std::string& text) {
    const auto id = static_cast<std::int64_t>(is_base ? ~prompt : prompt);
    for (const char byte : text) {
      if (!collector.on_token(id, {static_cast<unsigned char>(byte)})) return collector.on_done(id, false);
    }
    collector.on_token(id, {ByteTokenizer::kEos});
    collector.on_done(id, false);
  }

  ByteTokenizer tokenizer_;
  std::map<std::size_t, Answers> answers_;
  std::string shown_;
};

TEST_F(Collected, IsTextWithoutTheStopTokenAndIdsWithIt) {
  auto collector = make({{ByteTokenizer::kEos}, {}});
  answer(collector, 1, false, "hi");
  EXPECT_EQ(answers_.at(1).answer.text, "hi");
  EXPECT_EQ(answers_.at(1).answer.ids, (std::vector<std::int32_t>{'h', 'i', ByteTokenizer::kEos}));
  EXPECT_FALSE(answers_.at(1).answer.is_cut);
  EXPECT_FALSE(answers_.at(1).base.has_value());
}

TEST_F(Collected, EndsBeforeAStopStringAndShowsWholeCharacters) {
  auto collector = make({{}, {"\n\n"}}, /*streams=*/true);
  answer(collector, 0, false, "a\nb\n\nc");
  EXPECT_EQ(answers_.at(0).answer.text, "a\nb");
  EXPECT_EQ(answers_.at(0).answer.ids.size(), 5U);
  EXPECT_EQ(shown_, "[a][\nb]");
  shown_.clear();
  answers_.clear();
  auto other = make({{ByteTokenizer::kEos}, {"xyz"}}, /*streams=*/true);
  answer(other, 0, false, "\xC3\xA9xy");
  EXPECT_EQ(shown_, "[\xC3\xA9][xy]");
  EXPECT_EQ(answers_.at(0).answer.text, "\xC3\xA9xy");
}

TEST_F(Collected, WaitsForBothAnswersOfAComparison) {
  auto collector = make({{ByteTokenizer::kEos}, {}});
  answer(collector, 0, true, "base");
  answer(collector, 1, true, "base 1");
  EXPECT_TRUE(answers_.empty());
  answer(collector, 1, false, "adapter 1");
  EXPECT_EQ(answers_.at(1).base->text, "base 1");
  EXPECT_EQ(answers_.at(1).answer.text, "adapter 1");
  EXPECT_FALSE(answers_.contains(0));
}

TEST(SideBySide, WrapsAtWordsCutsLongOnesAndCountsWideCharactersTwice) {
  EXPECT_EQ(side_by_side("base", "one two three four five six", "adapter", "1\n\n2", 43),
            "base                 | adapter\n"
            "-------------------- | --------------------\n"
            "one two three four   | 1\n"
            "five six             |\n"
            "                     | 2\n");
  EXPECT_EQ(side_by_side("b", "\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60", "a",
                         "aaaaaaaaaaaaaaaaaaaaaaaa", 43),
            "b                    | a\n"
            "-------------------- | --------------------\n"
            "\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60\u4f60 | aaaaaaaaaaaaaaaaaaaa\n"
            "\u4f60                   | aaaa\n");
}

TEST(SideBySide, IsOneBelowTheOtherWhereThereIsNoRoomAndSteersNoTerminal) {
  EXPECT_EQ(side_by_side("base", "x\x1b[2J", "adapter", "y", 30), "base:\nx\\x1b[2J\nadapter:\ny\n");
}

}  // namespace
}  // namespace lora_train::cli
