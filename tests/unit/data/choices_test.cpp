#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/data/encode/task_examples.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

class Choices : public testing::Test {
 protected:
  std::vector<ChoiceSet> read(const std::string& examples, std::int64_t max_tokens = 0) {
    testing_support::write_text(file_, examples);
    DatasetSpec spec;
    spec.path = file_.string();
    spec.field_map = field_map_;
    data_.eval_datasets = {spec};
    return read_choice_sets(data_, options_, max_tokens);
  }
  std::string refusal(const std::string& example, std::int64_t max_tokens = 0) {
    try {
      read(example + "\n", max_tokens);
    } catch (const DataError& error) {
      EXPECT_EQ(error.where(), file_.string() + ":1");
      return error.message();
    }
    return "no error";
  }
  // "prompt|choice"
  std::string show(const Choice& choice) const {
    const std::span<const std::int32_t> ids = choice.ids;
    return tokenizer_.decode(ids.first(choice.num_prompt), false) + "|" +
           tokenizer_.decode(ids.subspan(choice.num_prompt), false);
  }

  testing_support::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "quiz.jsonl";
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  std::map<std::string, std::string> field_map_;
  PromptOptions options_{&tokenizer_, &template_, false, {}};
  DataSection data_;
};

TEST_F(Choices, StandBehindTextsAsTheyAreAndBehindChatsThroughTheTemplate) {
  const auto sets = read(R"({"prompt": "2+2=", "choices": ["4", "22"], "answer": 0}
{"messages": [{"role": "user", "content": "2+3?"}], "choices": ["\u00e9", "5"], "answer": "5"}
{"prompt": "x", "choices": ["a", "b", "c"], "answer": "2"}
)");
  ASSERT_EQ(sets.size(), 1U);
  const auto& examples = sets[0].examples;
  ASSERT_EQ(examples.size(), 3U);
  EXPECT_EQ(show(examples[0].choices[1]), "2+2=|22");
  EXPECT_EQ(show(examples[1].choices[0]), "user:2+3?.|\u00e9");
  EXPECT_EQ(examples[1].choices[0].num_chars, 1);
  EXPECT_EQ(examples[0].answer, 0U);
  EXPECT_EQ(examples[1].answer, 1U);
  EXPECT_EQ(examples[2].answer, 2U);
  EXPECT_EQ(examples[1].source, file_.string() + ":2");
  const NamedStore& right = sets[0].right;
  EXPECT_EQ(right.name, "quiz");
  ASSERT_EQ(right.store.size(), 3U);
  EXPECT_EQ(right.store.num_supervised(0), 1);
  EXPECT_EQ(right.store.source(2), file_.string() + ":3");
}

TEST_F(Choices, TakeBosNamesOfFieldsAndAsManyExamplesAsAsked) {
  const ByteTokenizer with_bos(true);
  options_.tokenizer = &with_bos;
  field_map_ = {{"prompt", "question"}, {"answer", "label"}};
  data_.eval_max_samples = 1;
  const auto sets = read("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"label\": 1}\nnot json\n");
  ASSERT_EQ(sets[0].examples.size(), 1U);
  EXPECT_EQ(show(sets[0].examples[0].choices[1]), "<s>q|b");
}

TEST_F(Choices, AreRefusedWithFileAndLine) {
  EXPECT_NE(refusal(R"({"prompt": "q", "choices": ["a"], "answer": 0})").find("two or more"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "q", "choices": ["a", ""], "answer": 0})").find("choices[1] is empty"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "q", "choices": ["a", "b"], "answer": 2})").find("answer is 2"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "q", "choices": ["a", "b"], "answer": "c"})").find("neither one of the choices"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"choices": ["a", "b"], "answer": 0})").find("neither prompt nor messages"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "", "choices": ["a", "b"], "answer": 0})").find("prompt is empty"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "qqqq", "choices": ["a", "b"], "answer": 0})", 4).find("has 5 tokens"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "q", "answer": 0})").find("choices"), std::string::npos);
}

}  // namespace
}  // namespace lora_train::data
