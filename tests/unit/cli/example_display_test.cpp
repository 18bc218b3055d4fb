#include <gtest/gtest.h>

#include "commands/token_commands.h"
#include "support/expect_parts.h"

namespace lora_train::cli {
namespace {

using testing_support::expect_parts;

const data::ExampleView kExample = {.source = "a.jsonl:2",
                                    .ids = {5, 6, 7, 8},
                                    .labels = {-100, 6, 7, -100},
                                    .pieces = {"Hi ", "a\n", "\x1b[2J", "!"},
                                    .text = "Hi a\n\x1b[2J!"};

TEST(ExampleDisplay, MarksTrainedTokensAndHidesControlCharacters) {
  EXPECT_EQ(format_example(kExample, false), "a.jsonl:2: 4 tokens, 2 trained\nHi [[a\n\\x1b[2J]]!\nids: 5 6* 7* 8\n");
  data::ExampleView example = {.source = "a:1", .ids = {1, 2}, .labels = {-100, 2}, .pieces = {"x", "y"}, .text = "xy"};
  EXPECT_EQ(format_example(example, false), "a:1: 2 tokens, 1 trained\nx[[y]]\nids: 1 2*\n");
  example.labels = {1, -100};  // the first token is never trained
  EXPECT_EQ(format_example(example, false), "a:1: 2 tokens, 0 trained\nxy\nids: 1 2\n");
  example = {.source = "a:1", .ids = {1}, .labels = {-100}, .pieces = {"\xC2\x9B\xE2\x80\xAE\xC3\xA9\xFF"}, .text = ""};
  EXPECT_EQ(format_example(example, false), "a:1: 1 tokens, 0 trained\n\\u009b\\u202e\xC3\xA9\\xff\nids: 1\n");
}

TEST(ExampleDisplay, UsesColoursOnATerminal) {
  expect_parts(format_example(kExample, true), {"Hi \x1b[32ma\n\\x1b[2J\x1b[0m!"});
  data::ExampleView example = kExample;
  example.is_special = {true, true, false, false};
  expect_parts(format_example(example, true), {"\x1b[36mHi \x1b[0m\x1b[1;32ma\n\x1b[0m\x1b[32m\\x1b[2J\x1b[0m!"});
  EXPECT_EQ(format_example(example, false), format_example(kExample, false));
}

TEST(ExampleDisplay, JsonHasTheLabelsAsTheyAreAndNoTextWithoutATokenizer) {
  EXPECT_EQ(example_to_json(kExample),
            R"({"source":"a.jsonl:2","input_ids":[5,6,7,8],"labels":[-100,6,7,-100],"text":"Hi a\n\u001b[2J!"})");
  const data::ExampleView bare = {.source = "a:1", .ids = {1, 2}, .labels = {1, 2}, .pieces = {}, .text = ""};
  EXPECT_EQ(example_to_json(bare), R"({"source":"a:1","input_ids":[1,2],"labels":[1,2],"text":null})");
  EXPECT_EQ(format_example(bare, false), "a:1: 2 tokens, 1 trained\nids: 1 2*\n");
}

TEST(ExampleDisplay, ShowsWeights) {
  data::ExampleView example = kExample;
  example.weights = {0, 0.25F, 3, 0};
  expect_parts(format_example(example, false), {"ids: 5 6*0.25 7*3 8\n"});
  expect_parts(example_to_json(example), {R"("labels":[-100,6,7,-100],"weights":[0.0,0.25,3.0,0.0],"text")"});
}

}  // namespace
}  // namespace lora_train::cli
