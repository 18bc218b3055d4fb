#include <gtest/gtest.h>

#include "encode/encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/data/cache/document_store.h"

namespace lora_train::data {
namespace {

using Ids = std::vector<std::int32_t>;

/// Trained: 20, which another turn has, and the last three.
EncodedSample sample() { return {{10, 20, 30, 41, 42, 43}, {-100, 20, -100, 41, 42, 43}}; }

EncodedSample with(const std::string& logprobs) {
  EncodedSample out = sample();
  add_soft_labels(Json::parse(logprobs), TeacherVocabulary(nullptr, 100), out);
  return out;
}

TEST(TeacherTokens, BelongToTheLastTrainedTokens) {
  const EncodedSample out = with(R"([
    {"id": 41, "logprob": -0.5, "top_logprobs": [{"id": 41, "logprob": -0.5}, {"id": 7, "logprob": -1}]},
    {"token": "token_id:42", "logprob": -0.25, "top_logprobs": [{"token": "token_id:8", "logprob": -2}, {"id": 500, "logprob": -3}]}])");
  EXPECT_EQ(out.soft_width, 2);
  EXPECT_EQ(out.soft_ids, (Ids{-1, -1, 41, 7, 42, 8, -1, -1}));
  EXPECT_EQ(out.soft_log_probs, (std::vector<float>{0, 0, -0.5, -1, -0.25, -2, 0, 0}));
}

TEST(TeacherTokens, EndWhereTheExampleHasAnotherToken) {
  const EncodedSample out =
      with(R"({"content": [{"id": 41, "logprob": -1}, {"id": 9, "logprob": -1}, {"id": 43, "logprob": -1}]})");
  EXPECT_EQ(out.soft_ids, (Ids{-1, 41, -1, -1}));
  EXPECT_EQ(with(R"([{"id": 9, "logprob": -1}])").soft_width, 0);
  EXPECT_EQ(with("[]").soft_width, 0);
}

TEST(TeacherTokens, NothingPredictsTheFirstTokenOfAnExample) {
  EncodedSample out{{41, 42}, {41, 42}};
  add_soft_labels(Json::parse(R"([{"id": 41, "logprob": -1}, {"id": 42, "logprob": -2}])"),
                  TeacherVocabulary(nullptr, 100), out);
  EXPECT_EQ(out.soft_ids, (Ids{42}));
  EXPECT_EQ(out.soft_log_probs, (std::vector<float>{-2}));
}

TEST(TeacherTokens, RefusesOtherForms) {
  for (const char* text : {"1", R"({"tokens": ["a"]})", R"([{"id": 41}])", R"([{"logprob": -1}])", "[3]",
                           R"([{"id": 41, "logprob": -1, "top_logprobs": 4}])"}) {
    EXPECT_THROW(with(text), DataError) << text;
  }
}

}  // namespace
}  // namespace lora_train::data
