#include <gtest/gtest.h>

#include "output/answers.h"

namespace lora_train::cli {
namespace {

TEST(SideBySide, WrapsBothTextsAtWords) {
  EXPECT_EQ(side_by_side("base", "one two three four five six", "adapter", "1\n\n2", 43),
            "base                 | adapter\n"
            "-------------------- | --------------------\n"
            "one two three four   | 1\n"
            "five six             |\n"
            "                     | 2\n");
}

TEST(SideBySide, CutsLongWordsAndCountsWideCharactersTwice) {
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
