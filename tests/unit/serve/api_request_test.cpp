#include "lora_train/serve/api_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "answer_json.h"
#include "unit/serve/wrong_bodies.h"

namespace lora_train::serve {
namespace {

using nlohmann::json;

const char* const kChat = R"({"model": "m", "messages": [{"role": "user", "content": "Hi"}])";

ApiRequest chat(const std::string& more = "") { return parse_chat_request(kChat + more + "}"); }

ApiError refusal(const std::string& more) {
  try {
    chat(more);
  } catch (const ApiError& error) {
    return error;
  }
  ADD_FAILURE() << "not refused: " << more;
  return {200, ""};
}

TEST(ApiRequest, HasTheDefaultsOfOpenAi) {
  const ApiRequest request = chat();
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(json::parse(request.chat), json::parse(R"({"messages": [{"role": "user", "content": "Hi"}]})"));
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.has_seed || request.streams || request.include_usage || request.max_tokens || request.num_top);
}

TEST(ApiRequest, ReadsEveryField) {
  const ApiRequest request = chat(R"(, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 7, "n": 2,
      "max_completion_tokens": 9.0, "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
      "logprobs": true, "top_logprobs": 4, "tools": [{"type": "function"}], "chat_template_kwargs": {"enable_thinking": false})");
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.top_k, 20);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.seed, 7U);
  EXPECT_TRUE(request.has_seed && request.streams && request.include_usage);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.num_top, 4);
  EXPECT_EQ(json::parse(request.chat)["tools"], json::parse(R"([{"type": "function"}])"));
  EXPECT_EQ(json::parse(request.chat)["chat_template_kwargs"]["enable_thinking"], false);
}

TEST(ApiRequest, JoinsPartsOfTextAndTakesDeveloperForSystem) {
  const ApiRequest request = parse_chat_request(
      R"({"model": "m", "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                                    {"role": "assistant", "content": null, "tool_calls": []}, {"role": "user", "content": "c"}]})");
  const json messages = json::parse(request.chat)["messages"];
  EXPECT_EQ(messages[0], json::parse(R"({"role": "system", "content": "ab"})"));
  EXPECT_TRUE(messages[1]["content"].is_null());
}

TEST(ApiRequest, TakesTheFourFormsOfAPrompt) {
  const auto prompt = [](const std::string& value) {
    return parse_completion_request(R"({"model": "m", "prompt": )" + value + "}");
  };
  EXPECT_EQ(prompt(R"("a")").texts, (std::vector<std::string>{"a"}));
  EXPECT_EQ(prompt(R"(["a", "b"])").texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(prompt("[1, 2]").token_lists, (std::vector<std::vector<std::int32_t>>{{1, 2}}));
  EXPECT_EQ(prompt("[[1], [2, 3]]").token_lists, (std::vector<std::vector<std::int32_t>>{{1}, {2, 3}}));
  for (const char* wrong :
       {"[]", "[[]]", "5", "{}", "[1, \"a\"]", "[\"a\", 1]", "[[1], 2]", "[-1]", "[1e10]", "[[1.5]]"}) {
    EXPECT_THROW(prompt(wrong), ApiError) << wrong;
  }
}

TEST(ApiRequest, RefusesWhatItDoesNotKnowAndIgnoresWhatChangesNothing) {
  EXPECT_EQ(refusal(R"(, "mystery": 1)").param(), "mystery");
  EXPECT_EQ(refusal(R"(, "mystery": 1)").code(), "unknown_parameter");
  EXPECT_EQ(refusal(R"(, "presence_penalty": 1)").param(), "presence_penalty");
  EXPECT_NO_THROW(chat(
      R"(, "mystery": null, "user": "x", "metadata": {}, "presence_penalty": 0, "logit_bias": {}, "tool_choice": "auto")"));
}

TEST(ApiRequest, RefusesEveryWrongBody) {
  std::size_t num_wrong = 0;
  for (const std::string& body : wrong_bodies()) {
    try {
      parse_chat_request(body);
      ADD_FAILURE() << "not refused: " << body.substr(0, 200);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400) << body.substr(0, 200);
      EXPECT_FALSE(json::parse(error.json())["error"]["message"].get<std::string>().empty());
      ++num_wrong;
    }
  }
  EXPECT_GE(num_wrong, 200U);
}

TEST(ApiError, SaysNullWhereThereIsNothing) {
  EXPECT_EQ(
      json::parse(ApiError(401, "who?", "", "invalid_api_key").json()),
      json::parse(
          R"({"error": {"message": "who?", "type": "authentication_error", "param": null, "code": "invalid_api_key"}})"));
  EXPECT_STREQ(ApiError(503, "").type(), "server_error");
}

}  // namespace
}  // namespace lora_train::serve
