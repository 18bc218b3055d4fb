#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/data/encode/task_examples.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

class AnswerExamples : public testing::Test {
 protected:
  std::vector<AnswerExample> read(const std::string& examples, std::optional<std::int64_t> max_examples = {},
                                  bool with_choices = false) {
    testing_support::write_text(file_, examples);
    DatasetSpec spec;
    spec.path = file_.string();
    spec.field_map = field_map_;
    DataContext context;
    context.tokenizer = &tokenizer_;
    context.chat_template = &template_;
    return read_answer_examples(spec, max_examples, context, with_choices);
  }
  std::string refusal(const std::string& example) {
    try {
      read(R"({"prompt": "a", "completion": "b"})"
           "\n" +
           example + "\n");
    } catch (const DataError& error) {
      EXPECT_TRUE(error.where().starts_with(file_.string() + ":2")) << error.where();
      return error.message();
    }
    return "no error";
  }
  /// "prompt|answer"
  std::string show(const AnswerExample& example) const {
    const std::span<const std::int32_t> ids = example.ids;
    return tokenizer_.decode(ids.first(example.answer_begin), false) + "|" +
           tokenizer_.decode(ids.subspan(example.answer_begin, example.answer_end - example.answer_begin), false);
  }

  testing_support::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "rows.jsonl";
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  std::map<std::string, std::string> field_map_;
};

TEST_F(AnswerExamples, HaveChoicesForThePromptOfTheirAnswer) {
  const std::string example =
      R"({"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "x"}], )"
      R"("choices": ["x", "yy"], "answer": "yy"})";
  EXPECT_FALSE(read(example).at(0).choices.has_value()) << "nobody asked";
  const ChoiceExample choices = read(example, {}, true).at(0).choices.value();
  EXPECT_EQ(choices.answer, 1U);
  ASSERT_EQ(choices.choices.size(), 2U);
  EXPECT_EQ(tokenizer_.decode(choices.choices[1].ids, false), "user:1?.yy");
  EXPECT_EQ(choices.choices[1].ids.size() - choices.choices[1].num_prompt, 2U);
  const std::string judged = example.substr(0, example.size() - 1) + R"(, "correct": false})";
  EXPECT_FALSE(read(judged, {}, true).at(0).choices.has_value()) << "the example says it";
}

TEST_F(AnswerExamples, HaveTheLastAnswerOfAnyLayout) {
  const auto chats =
      read(R"({"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "x"}, )"
           R"({"role": "user", "content": "2?"}, {"role": "assistant", "content": "y"}], "correct": true})");
  EXPECT_EQ(show(chats.at(0)), "user:1?.assistant:x.user:2?.assistant:|y.");
  EXPECT_EQ(chats[0].correct, true);
  EXPECT_EQ(chats[0].source, file_.string() + ":1");
  const auto texts = read(
      "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"a\", \"completion\": \"b\", \"correct\": "
      "false}\n");
  EXPECT_EQ(show(texts.at(0)), "1+1=|2</s>");
  EXPECT_FALSE(texts[0].correct);
  EXPECT_EQ(texts.at(1).correct, false);
}

TEST_F(AnswerExamples, TakesTheFirstExamplesAndTheNamesOfTheFile) {
  field_map_ = {{"prompt", "q"}, {"completion", "a"}, {"correct", "ok"}};
  const auto examples =
      read("{\"q\": \"1\", \"a\": \"2\", \"ok\": true}\n{\"q\": \"3\", \"a\": \"4\"}\nno example\n", 2);
  ASSERT_EQ(examples.size(), 2U);
  EXPECT_EQ(examples[0].correct, true);
}

TEST_F(AnswerExamples, WhatIsWrongNamesTheExample) {
  EXPECT_NE(refusal(R"({"prompt": "a", "completion": "b", "correct": "yes"})")
                .find("correct is string, expected true or false"),
            std::string::npos);
  EXPECT_NE(refusal("no example").find("JSON"), std::string::npos) << refusal("no example");
  EXPECT_NE(refusal(R"({"prompt": "", "completion": "b"})").find("no prompt"), std::string::npos);
  EXPECT_THROW(read(""), DataError);
}

/// <0> and <1> are one token each.
class ConfidenceTokenizer : public ByteTokenizer {
 public:
  tokenizer::Encoding encode(std::string_view text, bool with_offsets) const override {
    if (text == "<0>") return {{300}, {}};
    if (text == "<1>") return {{301}, {}};
    return ByteTokenizer::encode(text, with_offsets);
  }
};

TEST(ConfidenceTokensOfAProfile, AreOneTokenEachAndStandOnceInAnAnswer) {
  const ConfidenceTokenizer tokenizer;
  TaskSection section;
  section.confidence_tokens = {{"<1>", 1}, {"<0>", 0}};
  const ConfidenceTokens tokens = confidence_tokens(section, tokenizer);
  EXPECT_EQ(tokens.ids, (std::vector<std::int32_t>{301, 300}));
  const std::vector<std::int32_t> ids = {300, 7, 8, 301, 9};
  EXPECT_EQ(find_confidence(ids, 1, 5, tokens, "f:1"), 3U);
  EXPECT_EQ(tokens.without(ids), (std::vector<std::int32_t>{7, 8, 9}));
  const auto refusal = [&](std::size_t begin, std::size_t end) -> std::string {
    try {
      find_confidence(ids, begin, end, tokens, "f:1");
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(0, 5), "f:1: has more than one confidence token in its last answer; expected one of <1>, <0>");
  EXPECT_EQ(refusal(1, 3), "f:1: has no confidence token in its last answer; expected one of <1>, <0>");
  section.confidence_tokens.emplace_back("sure", 0.5);
  try {
    confidence_tokens(section, tokenizer);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("\"sure\" is 4 tokens in this tokenizer, expected one"), std::string::npos);
  }
}

}  // namespace
}  // namespace lora_train::data
