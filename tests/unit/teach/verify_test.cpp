#include "lora_train/teach/verify.h"

#include <gtest/gtest.h>

#include "support/loaded_tokenizer.h"
#include "support/test_data.h"

namespace lora_train::teach {
namespace {

using Numbers = std::vector<double>;

/// One token per number. The server's gaps to the adapter and to the base.
std::string verdict(const Numbers& to_adapter, const Numbers& to_base) {
  ServedTokens served;
  Numbers adapter, base;
  for (std::size_t i = 0; i < to_adapter.size(); ++i) {
    served.ids.push_back(7);
    served.log_probs.emplace_back(-4);
    adapter.push_back(-4 + to_adapter[i]);
    base.push_back(-4 + to_base[i]);
  }
  const Comparison result = compare({served}, {adapter}, {base});
  return result.can_tell ? result.verdict : "cannot tell";
}

TEST(Verify, DecidesByMeanGaps) {
  struct Case {
    Numbers to_adapter, to_base;
    const char* expected;
  };
  for (const Case& one : std::vector<Case>{{{0.099}, {0.3}, "adapter"},
                                           {{-0.099}, {0.29}, "neither"},  // more than a third
                                           {{0.101}, {2}, "neither"},
                                           {{0, -0.19}, {0.5, 0.5}, "adapter"},  // the mean counts
                                           {{0, -0.21}, {0.5, 0.5}, "neither"},
                                           {{0.3}, {-0.099}, "base"},
                                           {{2}, {0.101}, "neither"},
                                           {{0.001}, {0.0205}, "cannot tell"},
                                           {{0.001}, {0.0215}, "adapter"},
                                           {{3.001}, {3.0205}, "cannot tell"}}) {
    EXPECT_EQ(verdict(one.to_adapter, one.to_base), one.expected) << one.to_adapter[0] << " " << one.to_base[0];
  }
}

TEST(Verify, LeavesOutTokensWithoutNumber) {
  const Comparison result = compare({{{1, 2}, {-1.0, std::nullopt}, 1}, {{}, {}, 5}}, {{-1.5, -9}, {}}, {{-3, -9}, {}});
  EXPECT_EQ(result.num_tokens, 1);
  EXPECT_EQ(result.num_left_out, 6);
  EXPECT_EQ(result.max_gap, 0.5);
  EXPECT_EQ(result.gap_to_base, 2);
}

TEST(Verify, KnowsTokensByIdOrText) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen2.5");
  const auto& tokenizer = testing_support::loaded_tokenizer(folder);
  const std::vector<std::int32_t> usual = tokenizer.encode(" Paris is").ids;
  ASSERT_EQ(usual.size(), 2U);
  const auto ids = [&](const std::string& tokens, const std::string& text = "") {
    const std::string body = R"({"choices": [{"text": ")" + text + R"(", "logprobs": {"content": [)" + tokens + "]}}]}";
    return read_log_probs(body, {.prompt = {1}, .tokens = {2}, .max_tokens = 3}, false, tokenizer).ids;
  };
  EXPECT_EQ(ids(R"({"token": "?", "id": 5, "logprob": -1}, {"token": "?", "id": 6, "logprob": -1})"),
            (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(ids(R"({"token": " Paris", "logprob": -1}, {"token": " is", "logprob": -1})", " Paris is"), usual);
  // The parts of " Paris" as the server cut it, which is not the usual way.
  EXPECT_EQ(ids(R"({"token": " Par", "logprob": -1}, {"token": "is", "logprob": -1})", " Paris"),
            (std::vector<std::int32_t>{tokenizer.encode(" Par").ids[0], tokenizer.encode("is").ids[0]}));
  EXPECT_EQ(ids(R"({"token": "<|im_end|>", "logprob": -1})"),
            std::vector<std::int32_t>{*tokenizer.token_to_id("<|im_end|>")});
  EXPECT_EQ(ids(R"({"token": "\ufffd", "logprob": -1}, {"token": " is", "logprob": -1})", "\ufffd is").size(), 0U);
  EXPECT_EQ(ids(R"({"id": 5}, {"id": -6}, {"id": 7})").size(), 1U);
  EXPECT_EQ(ids(R"({"id": 5}, {"id": 99999999}, {"id": 7})").size(), 1U);
  EXPECT_EQ(ids(R"({"id": 5}, {"id": 6}, {"id": 7}, {"id": 8})").size(), 3U) << "longer than asked";
}

TEST(Verify, TakesNothingFromMalformedAnswers) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen2.5");
  const auto& tokenizer = testing_support::loaded_tokenizer(folder);
  const Continuation asked{.prompt = {1, 2}, .tokens = {3}, .max_tokens = 3};
  for (const std::string& body :
       {std::string(""), std::string("[]"), std::string(R"({"choices": {}})"), std::string(R"({"choices": [7]})"),
        std::string(R"({"choices": [{"logprobs": "a", "prompt_logprobs": {"2": {}}}]})"),
        std::string(R"({"choices": [{"logprobs": {"content": 3, "tokens": {}}}]})"),
        std::string(R"({"choices": [{"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1, -1]}}]})"),
        R"({"choices": [{"logprobs": )" + std::string(1000000, '[') + std::string(1000000, ']') + "}]}"}) {
    EXPECT_TRUE(read_log_probs(body, asked, true, tokenizer).ids.empty()) << body.substr(0, 80);
  }
  const auto one = [&](const std::string& number) {
    const std::string body = R"({"choices": [{"prompt_logprobs": [null, null, {"3": {"logprob": )" + number + "}}]}]}";
    return read_log_probs(body, asked, true, tokenizer);
  };
  EXPECT_EQ(one("-0.25").log_probs, std::vector<std::optional<double>>{-0.25});
  for (const char* const number : {"-9999", "0.5", "-Infinity", "NaN", "\"-1\"", "null", "[-1]"}) {
    const ServedTokens served = one(number);
    EXPECT_EQ(served.log_probs, std::vector<std::optional<double>>{std::nullopt}) << number;
    EXPECT_EQ(served.num_left_out, 1);
  }
}

}  // namespace
}  // namespace lora_train::teach
