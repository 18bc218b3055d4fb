#include "lora_train/serve/api_request.h"

#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "answer_json.h"

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

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// More than 200 bodies that are no chat request.
std::vector<std::string> wrong_bodies() {
  const std::string good = R"({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})";
  std::vector<std::string> bodies =
      words_of(R"(null true 5 "x" [] [{}] { } {} {] {"a"} {1:2} nan {'model':'m'} {"model":"\ud800","messages":[]})");
  bodies.insert(bodies.end(), {"", " ", std::string(3, '\0'), "\xEF\xBB\xBF", "\xff", std::string(200000, '['),
                               good + good, "{\"model\": \"\xc3\x28\"}"});
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += R"({"a":)";
  bodies.push_back(deep);
  for (std::size_t length = 1; length < good.size(); ++length) bodies.push_back(good.substr(0, length));
  // Each field with values of every wrong kind.
  const std::vector<std::string> kinds = words_of(R"(-1 0.5 1e300 "x" true [] {} [[]] [null])");
  const auto takes = [](const std::string& field, const std::string& kind) {
    const bool is_number = kind == "0.5" || kind == "1e300";
    if (field == "temperature") return is_number;
    if (field == "top_p" || field == "min_p") return kind == "0.5";
    if (field == "top_k" || field == "seed") return kind == "-1";
    if (field == "stop") return kind == "\"x\"" || kind == "[]";
    if (field == "stream" || field == "logprobs") return kind == "true";
    if (field == "tools" || field == "functions") return kind == "[]";
    if (field == "logit_bias" || field == "chat_template_kwargs" || field == "stream_options") return kind == "{}";
    return false;
  };
  for (const std::string& field : words_of(
           "temperature top_p min_p top_k seed stop stream n max_completion_tokens logprobs top_logprobs tools "
           "chat_template_kwargs stream_options logit_bias frequency_penalty response_format tool_choice functions "
           "surprise")) {
    for (const std::string& kind : kinds) {
      if (!takes(field, kind)) bodies.push_back(good.substr(0, good.size() - 1) + ", \"" + field + "\": " + kind + "}");
    }
  }
  for (const std::string& kind : kinds) {
    bodies.push_back(R"({"model": "m", "messages": )" + kind + "}");
    bodies.push_back(R"({"model": "m", "messages": [)" + kind + "]}");
    bodies.push_back(R"({"model": "m", "messages": [{"role": )" + kind + R"(, "content": 5}]})");
    if (kind != "\"x\"" && kind != "[]")
      bodies.push_back(R"({"model": "m", "messages": [{"role": "user", "content": )" + kind + "}]}");
  }
  return bodies;
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
