// More than 200 bodies that are no chat request.
#pragma once

#include <string>
#include <vector>

namespace lora_train::serve {

inline std::vector<std::string> wrong_bodies() {
  const std::string good = R"({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})";
  std::vector<std::string> bodies = {"",
                                     " ",
                                     "null",
                                     "true",
                                     "5",
                                     "\"x\"",
                                     "[]",
                                     "[{}]",
                                     "{",
                                     "}",
                                     "{}",
                                     "{]",
                                     "{\"a\"}",
                                     "{1: 2}",
                                     "nan",
                                     std::string(3, '\0'),
                                     "\xEF\xBB\xBF",
                                     "\xff",
                                     std::string(200000, '['),
                                     good + good,
                                     R"({"model": "\ud800", "messages": []})",
                                     "{\"model\": \"\xc3\x28\"}",
                                     "{'model': 'm'}"};
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += R"({"a":)";
  bodies.push_back(deep);
  for (std::size_t length = 1; length < good.size(); ++length) bodies.push_back(good.substr(0, length));
  // Each field with values of every wrong kind.
  const std::vector<std::string> kinds = {"-1", "0.5", "1e300", "\"x\"", "true", "[]", "{}", "[[]]", "[null]"};
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
  for (const char* const field : {"temperature",
                                  "top_p",
                                  "min_p",
                                  "top_k",
                                  "seed",
                                  "stop",
                                  "stream",
                                  "n",
                                  "max_completion_tokens",
                                  "logprobs",
                                  "top_logprobs",
                                  "tools",
                                  "chat_template_kwargs",
                                  "stream_options",
                                  "logit_bias",
                                  "frequency_penalty",
                                  "response_format",
                                  "tool_choice",
                                  "functions",
                                  "surprise"}) {
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

}  // namespace lora_train::serve
