#include <gtest/gtest.h>

#include "commands/token_commands.h"

namespace lora_train::cli {
namespace {

const data::ExampleView kExample = {.source = "a.jsonl:2",
                                    .ids = {5, 6, 7, 8},
                                    .labels = {-100, 6, 7, -100},
                                    .pieces = {"Hi ", "a\n", "\x1b[2J", "!"},
                                    .text = "Hi a\n\x1b[2J!"};

TEST(ExampleDisplay, MarksTrainedTokensAndHidesControlCharacters) {
  EXPECT_EQ(format_example(kExample, false), "a.jsonl:2: 4 tokens, 2 trained\nHi [[a\n\\x1b[2J]]!\nids: 5 6* 7* 8\n");
}

TEST(ExampleDisplay, UsesGreenOnATerminal) {
  EXPECT_NE(format_example(kExample, true).find("Hi \x1b[32ma\n\\x1b[2J\x1b[0m!"), std::string::npos);
}

TEST(ExampleDisplay, SpecialTokensHaveColoursOfTheirOwn) {
  data::ExampleView example = kExample;
  example.is_special = {true, true, false, false};
  EXPECT_NE(format_example(example, true).find("\x1b[36mHi \x1b[0m\x1b[1;32ma\n\x1b[0m\x1b[32m\\x1b[2J\x1b[0m!"),
            std::string::npos)
      << format_example(example, true);
  EXPECT_EQ(format_example(example, false), format_example(kExample, false));
}

TEST(ExampleDisplay, CharactersThatSteerATerminalAreShownByNumber) {
  const data::ExampleView example = {
      .source = "a:1", .ids = {1}, .labels = {-100}, .pieces = {"\xC2\x9B\xE2\x80\xAE\xC3\xA9\xFF"}, .text = ""};
  EXPECT_EQ(format_example(example, false), "a:1: 1 tokens, 0 trained\n\\u009b\\u202e\xC3\xA9\\xff\nids: 1\n");
}

TEST(ExampleDisplay, ClosesTheMarkAtTheEnd) {
  const data::ExampleView example = {
      .source = "a:1", .ids = {1, 2}, .labels = {-100, 2}, .pieces = {"x", "y"}, .text = "xy"};
  EXPECT_EQ(format_example(example, false), "a:1: 2 tokens, 1 trained\nx[[y]]\nids: 1 2*\n");
}

TEST(ExampleDisplay, FirstTokenIsNeverTrained) {
  const data::ExampleView example = {
      .source = "a:1", .ids = {1, 2}, .labels = {1, -100}, .pieces = {"x", "y"}, .text = "xy"};
  EXPECT_EQ(format_example(example, false), "a:1: 2 tokens, 0 trained\nxy\nids: 1 2\n");
}

TEST(ExampleDisplay, JsonHasTheLabelsAsTheyAre) {
  EXPECT_EQ(example_to_json(kExample),
            R"({"source":"a.jsonl:2","input_ids":[5,6,7,8],"labels":[-100,6,7,-100],"text":"Hi a\n\u001b[2J!"})");
}

TEST(ExampleDisplay, ShowsWeights) {
  data::ExampleView example = kExample;
  example.weights = {0, 0.25F, 3, 0};
  EXPECT_NE(format_example(example, false).find("ids: 5 6*0.25 7*3 8\n"), std::string::npos)
      << format_example(example, false);
  EXPECT_NE(example_to_json(example).find(R"("labels":[-100,6,7,-100],"weights":[0.0,0.25,3.0,0.0],"text")"),
            std::string::npos);
}

TEST(ExampleDisplay, WithoutATokenizerThereIsNoText) {
  const data::ExampleView bare = {.source = "a:1", .ids = {1, 2}, .labels = {1, 2}, .pieces = {}, .text = ""};
  EXPECT_EQ(example_to_json(bare), R"({"source":"a:1","input_ids":[1,2],"labels":[1,2],"text":null})");
  EXPECT_EQ(format_example(bare, false), "a:1: 2 tokens, 1 trained\nids: 1 2*\n");
}

}  // namespace
}  // namespace lora_train::cli
