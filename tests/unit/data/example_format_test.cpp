#include "data/read/example_format.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"

namespace lora_train::data {
namespace {

Json json(const char* text) {
  const JsonExample example = parse_json_example(text);
  EXPECT_FALSE(example.problem) << text;
  return example.value;
}

template <typename Kind>
Kind parse(const char* text, DatasetType type, const FieldMap& map = {}) {
  return std::get<Kind>(parse_example(json(text), type, map));
}

std::string refusal(const char* text, DatasetType type) {
  try {
    parse_example(json(text), type, {});
  } catch (const DataError& error) {
    return error.message();
  }
  return "accepted";
}

std::string chat_of(const ChatSample& sample) {
  std::string out;
  for (const auto& message : sample.messages) {
    out += message.role + "=" + message.content + message.json + ";";
  }
  return out;
}

TEST(DetectLayout, KnowsEachLayoutByItsKeys) {
  const std::pair<const char*, DatasetType> cases[] = {
      {R"({"messages": [], "id": 1})", DatasetType::kMessages},
      {R"({"conversations": []})", DatasetType::kSharegpt},
      {R"({"prompt": "", "completion": ""})", DatasetType::kPromptCompletion},
      {R"({"instruction": "", "output": ""})", DatasetType::kAlpaca},
      {R"({"text": ""})", DatasetType::kText},
      {R"({"input_ids": []})", DatasetType::kPretokenized},
  };
  for (const auto& [text, type] : cases) {
    const Detection found = detect_layout(json(text), {});
    EXPECT_EQ(found.type, type) << text;
    EXPECT_NE(found.reason.find("the first example has"), std::string::npos);
  }
}

TEST(DetectLayout, SaysWhenAnotherLayoutWouldFitToo) {
  const Detection found = detect_layout(json(R"({"prompt": "a", "completion": "b", "messages": []})"), {});
  EXPECT_EQ(found.type, DatasetType::kMessages);
  EXPECT_NE(found.reason.find("prompt_completion"), std::string::npos) << found.reason;
}

TEST(CheckSameLayout, RefusesAnExampleThatWouldHaveDecidedOtherwise) {
  const Json both = json(R"({"text": "a", "messages": []})");
  EXPECT_THROW(check_same_layout(both, DatasetType::kText, {}), DataError);
  check_same_layout(both, DatasetType::kMessages, {});
  check_same_layout(json(R"({"text": "a", "messages": null})"), DatasetType::kText, {});
}

TEST(DetectLayout, NullIsNoField) {
  EXPECT_EQ(detect_layout(json(R"({"messages": null, "text": "x"})"), {}).type, DatasetType::kText);
}

TEST(DetectLayout, UsesTheFieldMap) {
  const FieldMap map = {{"prompt", "question"}, {"completion", "answer"}};
  const Detection found = detect_layout(json(R"({"question": "q", "answer": "a"})"), map);
  EXPECT_EQ(found.type, DatasetType::kPromptCompletion);
  EXPECT_NE(found.reason.find("question (as prompt)"), std::string::npos) << found.reason;
  const auto sample = parse<TextSample>(R"({"question": "q", "answer": "a"})", found.type, map);
  EXPECT_EQ(sample.prompt + "|" + sample.completion, "q|a");
}

TEST(DetectLayout, UnknownKeysListTheLayouts) {
  try {
    detect_layout(json(R"({"question": "q", "answer": "a"})"), {});
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find("question, answer"), std::string::npos);
    EXPECT_NE(error.message().find("prompt and completion"), std::string::npos);
    EXPECT_NE(error.message().find("field_map"), std::string::npos);
  }
}

TEST(DetectLayout, PairsOfAnswersNameTheLineForTheChosenOnes) {
  for (const auto& [example, line] :
       {std::pair{R"({"prompt": "q", "chosen": "a", "rejected": "b"})", "field_map: {completion: chosen}."},
        {R"({"chosen": [], "rejected": []})", "field_map: {messages: chosen}, where chosen is a whole chat."}}) {
    try {
      detect_layout(json(example), {});
      FAIL() << "accepted";
    } catch (const DataError& error) {
      EXPECT_TRUE(error.message().ends_with("preference training is not supported. To train on the chosen answers: " +
                                            std::string(line)))
          << error.message();
    }
  }
  const FieldMap map = {{"completion", "chosen"}};
  EXPECT_EQ(detect_layout(json(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), map).type,
            DatasetType::kPromptCompletion);
}

TEST(FieldMapping, UnknownNameIsRefusedWithTheNearest) {
  EXPECT_NO_THROW(check_field_map({{"prompt", "q"}}));
  try {
    check_field_map({{"promt", "q"}});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("did you mean \"prompt\""), std::string::npos);
  }
}

TEST(Messages, KeepsRolesContentsAndOtherFields) {
  const auto sample = parse<ChatSample>(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "x"}],
          "tools": "[{\"t\": 1}]", "chat_template_kwargs": {"enable_thinking": false}})",
      DatasetType::kMessages);
  EXPECT_EQ(chat_of(sample), "user=a;assistant=b{\"role\":\"assistant\",\"content\":\"b\",\"name\":\"x\"};");
  EXPECT_EQ(sample.tools_json, "[{\"t\":1}]");
  EXPECT_EQ(sample.kwargs_json, "{\"enable_thinking\":false}");
}

TEST(Messages, NullContentIsForToolCallsOnly) {
  const auto sample = parse<ChatSample>(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [1]}]})",
                                        DatasetType::kMessages);
  EXPECT_EQ(chat_of(sample), "assistant={\"role\":\"assistant\",\"content\":null,\"tool_calls\":[1]};");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": null}]})", DatasetType::kMessages),
            "messages[0]: \"content\" is null");
}

TEST(Messages, ContentIsMissingOnlyBesideCallsOfTheAssistant) {
  for (const char* message : {R"("role": "assistant", "content": null, "tool_calls": null)",
                              R"("role": "assistant", "content": null, "tool_calls": [])",
                              R"("role": "user", "content": null, "tool_calls": [1])"}) {
    const std::string example = R"({"messages": [{)" + std::string(message) + "}]}";
    EXPECT_EQ(refusal(example.c_str(), DatasetType::kMessages), "messages[0]: \"content\" is null") << message;
  }
  EXPECT_EQ(refusal(R"({"messages": [{"role": "tool", "tool_calls": [1]}]})", DatasetType::kMessages),
            "messages[0]: \"content\" is missing");
}

TEST(Messages, AbsentContentStaysAbsentAndOrderStays) {
  const auto sample = parse<ChatSample>(R"({"messages": [{"tool_calls": [1], "role": "assistant", "name": "x"},
                                                         {"content": "a", "role": "user"}]})",
                                        DatasetType::kMessages);
  EXPECT_EQ(chat_of(sample),
            "assistant={\"tool_calls\":[1],\"role\":\"assistant\",\"name\":\"x\"};"
            "user=a{\"content\":\"a\",\"role\":\"user\"};");
}

TEST(Messages, AFieldMapRenamesInPlace) {
  const FieldMap map = {{"role", "who"}, {"content", "says"}};
  const auto sample =
      parse<ChatSample>(R"({"messages": [{"id": 1, "who": "user", "says": "a"}, {"who": "user", "says": "b"}]})",
                        DatasetType::kMessages, map);
  EXPECT_EQ(chat_of(sample), "user=a{\"id\":1,\"role\":\"user\",\"content\":\"a\"};user=b;");
  try {
    parse_example(json(R"({"messages": [{"who": "user", "says": "a", "content": "b"}]})"), DatasetType::kMessages, map);
    ADD_FAILURE() << "accepted";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message().find("messages[0] has both \"content\" and \"says\""), 0U) << error.message();
  }
}

TEST(Messages, TrainAndWeightWeighTurns) {
  const auto sample = parse<ChatSample>(
      R"({"messages": [{"role": "user", "content": "a", "train": null},
                       {"role": "assistant", "content": "b", "train": false},
                       {"role": "assistant", "content": "b", "train": true, "weight": 1.0},
                       {"role": "assistant", "content": "b", "weight": -0.0},
                       {"role": "assistant", "content": "b", "weight": 0.25},
                       {"role": "assistant", "content": "b", "train": true, "weight": 3e38}]})",
      DatasetType::kMessages);
  using Weights = std::vector<std::optional<float>>;
  EXPECT_EQ(sample.weights, (Weights{std::nullopt, 0, 1, 0, 0.25F, 3e38F}));
  const auto sharegpt = parse<ChatSample>(
      R"({"system": "s", "conversations": [{"from": "gpt", "value": "a", "weight": 0.0}, {"from": "gpt", "value": "b", "weight": 1}]})",
      DatasetType::kSharegpt);
  EXPECT_EQ(sharegpt.weights, (Weights{std::nullopt, 0, 1}));
}

TEST(Messages, RefusesOtherWeights) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("weight": 4e38)", "messages[0].weight is 4e+38"},
      {R"("weight": 1e-39)", "messages[0].weight is 1e-39"},
      {R"("weight": -1e-300)", "messages[0].weight is -1e-300"},
      {R"("weight": [1])", "messages[0].weight is array, expected 0"},
      {R"("train": false, "weight": 0.5)", "train is false and weight is 0.5"},
      {R"("weight": -1)", "messages[0].weight is -1"},
      {R"("weight": "0")", "messages[0].weight is string, expected 0"},
      {R"("weight": true)", "messages[0].weight is boolean, expected 0"},
      {R"("train": 0)", "messages[0].train is number, expected true or false"},
      {R"("train": "false")", "messages[0].train is string, expected true or false"},
      {R"("train": true, "weight": 0)", "train is true and weight is 0"},
      {R"("train_detail": [])", "messages[0].train_detail is not supported"}};
  for (const auto& [field, message] : cases) {
    const std::string example = R"({"messages": [{"role": "assistant", "content": "a", )" + std::string(field) + "}]}";
    const std::string said = refusal(example.c_str(), DatasetType::kMessages);
    EXPECT_EQ(said.find(message) != std::string::npos, true) << field << "\n" << said;
  }
}

TEST(Messages, RefusesMalformedConversations) {
  const auto type = DatasetType::kMessages;
  EXPECT_NE(refusal(R"({"messages": []})", type).find("messages is empty"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": "hi"})", type).find("messages is string, expected a list"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": ["hi"]})", type).find("messages[0] is string"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"content": "a"}]})", type).find("\"role\" is missing"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "user"}]})", type).find("\"content\" is missing"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "bot", "content": "a"}]})", type).find("an unknown role: \"bot\";"),
            std::string::npos);
  const std::string roles =
      refusal(R"({"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]})", type);
  EXPECT_NE(roles.find("messages[0].role is an unknown role: \"human\", \"gpt\"; known are"), std::string::npos)
      << roles;
  EXPECT_NE(roles.find("field_map: {user: human, assistant: gpt}"), std::string::npos) << roles;
  EXPECT_NE(refusal(R"({"messages": [{"role": "user", "content": 5}]})", type).find("messages[0].content is number"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": 5, "content": "a"}]})", type).find("messages[0].role is number"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"text": "a"})", type).find("\"messages\" is missing"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "user", "content": "a"}], "tools": "no json"})", type).find("tools"),
            std::string::npos);
}

TEST(Messages, ToolsInAStringAreReadAsStrictlyAsTheExample) {
  const auto said = [](const char* tools) {
    const std::string example =
        R"({"messages": [{"role": "user", "content": "a"}], "tools": ")" + std::string(tools) + "\"}";
    return refusal(example.c_str(), DatasetType::kMessages);
  };
  EXPECT_EQ(said("[123456789012345678901234567890]"),
            "tools is a string, but its text was rejected: an integer beyond 64 bits; write it as a string");
  EXPECT_EQ(said(R"([{\"a\": 1, \"a\": 2}])"),
            "tools is a string, but its text was rejected: duplicate key \"a\"; an object has each key once");
  EXPECT_EQ(said("[NaN]").find("tools is a string, but its text was rejected: NaN and Infinity are not JSON"), 0U)
      << said("[NaN]");
  EXPECT_EQ(said("5"), "tools is string, expected a list, or a string that holds one as JSON");
  EXPECT_EQ(said("[1] [2]").find("tools is a string, but its text was rejected: invalid JSON: "), 0U)
      << said("[1] [2]");
  EXPECT_EQ(said(R"([{\"a\": [-9223372036854775808, 1.5, true, null, \"x\"]}])"), "accepted");
}

TEST(Messages, BlankToolsAreNone) {
  for (const char* tools : {"", " \\n\\t"}) {
    const std::string example =
        R"({"messages": [{"role": "user", "content": "a"}], "tools": ")" + std::string(tools) + "\"}";
    EXPECT_EQ(parse<ChatSample>(example.c_str(), DatasetType::kMessages).tools_json, "");
  }
}

TEST(Messages, ManyFieldsTakeLinearTime) {
  std::string message = R"({"role": "user", "content": "a")";
  for (int i = 0; i < 9990; ++i) message += ",\"k" + std::to_string(i) + "\": 0";
  const auto sample = parse<ChatSample>((R"({"messages": [)" + message + "}]}").c_str(), DatasetType::kMessages);
  EXPECT_EQ(Json::parse(sample.messages[0].json).size(), 9992U);
}

TEST(Messages, BoundsTheDepthOfToolsInAString) {
  const std::string deep(100000, '[');
  const std::string example = R"({"messages": [{"role": "user", "content": "a"}], "tools": ")" + deep + "\"}";
  EXPECT_NE(refusal(example.c_str(), DatasetType::kMessages).find("deeper than 64"), std::string::npos);
}

TEST(PromptCompletion, TakesStringsOrMessages) {
  const auto text = parse<TextSample>(R"({"prompt": "p", "completion": "c"})", DatasetType::kPromptCompletion);
  EXPECT_EQ(text.prompt + "|" + text.completion, "p|c");
  const auto chat = parse<ChatSample>(
      R"({"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]})",
      DatasetType::kPromptCompletion);
  EXPECT_EQ(chat_of(chat), "user=p;assistant=c;");
  EXPECT_EQ(chat.num_prompt_messages, 1U);
  EXPECT_NE(
      refusal(R"({"prompt": [{"role": "user", "content": "p"}], "completion": "c"})", DatasetType::kPromptCompletion)
          .find("both must be strings, or both"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "p", "completion": 3})", DatasetType::kPromptCompletion).find("completion is number"),
            std::string::npos);
}

TEST(Sharegpt, MapsSpeakersToRoles) {
  const auto sample = parse<ChatSample>(
      R"({"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
      DatasetType::kSharegpt);
  EXPECT_EQ(chat_of(sample), "system=s;user=a;assistant=b;");
  EXPECT_NE(refusal(R"({"conversations": [{"from": "alien", "value": "a"}]})", DatasetType::kSharegpt).find("alien"),
            std::string::npos);
}

TEST(Sharegpt, NamesOfOtherToolsAreAdvisedUpon) {
  for (const std::string theirs : {"bot", "model", "ai", "chatbot"}) {
    const std::string example = R"({"conversations": [{"from": ")" + theirs + R"(", "value": "a"}]})";
    const std::string said = refusal(example.c_str(), DatasetType::kSharegpt);
    EXPECT_NE(said.find("Name yours in field_map: {assistant: " + theirs + "}"), std::string::npos) << said;
  }
}

TEST(Sharegpt, FunctionCallsBecomeToolCalls) {
  const auto sample = parse<ChatSample>(
      R"({"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
                            {"from": "observation", "value": "2"}]})",
      DatasetType::kSharegpt);
  EXPECT_EQ(chat_of(sample),
            "assistant={\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":"
            "{\"name\":\"f\",\"arguments\":{\"x\":1}}}]};tool=2;");
}

TEST(Sharegpt, OtherFieldsGoWithTheirTurn) {
  const auto sample = parse<ChatSample>(
      R"({"conversations": [{"from": "human", "value": "a", "name": "x"},
                            {"from": "gpt", "value": "b", "tool_calls": [1], "reasoning_content": "r"},
                            {"from": "gpt", "value": null, "tool_calls": [1]},
                            {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}", "reasoning_content": "r"}]})",
      DatasetType::kSharegpt);
  EXPECT_EQ(
      chat_of(sample),
      R"(user=a{"role":"user","content":"a","name":"x"};)"
      R"(assistant=b{"role":"assistant","content":"b","tool_calls":[1],"reasoning_content":"r"};)"
      R"(assistant={"role":"assistant","content":null,"tool_calls":[1]};)"
      R"(assistant={"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}],)"
      R"("reasoning_content":"r"};)");
}

TEST(Sharegpt, MessagesWithOurNamesAreReadAsMessages) {
  const auto sample = parse<ChatSample>(
      R"({"conversations": [{"role": "human", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "r"},
                            {"role": "assistant", "tool_calls": [1]}]})",
      DatasetType::kSharegpt);
  EXPECT_EQ(chat_of(sample), R"(user=a;assistant=b{"role":"assistant","content":"b","reasoning_content":"r"};)"
                             R"(assistant={"role":"assistant","tool_calls":[1]};)");
}

TEST(Sharegpt, RefusesTwoNamesForOneThing) {
  const auto type = DatasetType::kSharegpt;
  EXPECT_EQ(refusal(R"({"conversations": [{"from": "gpt", "value": "a", "content": "b"}]})", type),
            "conversations[0] has both \"content\" and \"value\", which mean the same; keep one of them");
  EXPECT_EQ(refusal(R"({"conversations": [{"from": "gpt", "value": "a", "role": null, "content": null}]})", type),
            "accepted");
  EXPECT_EQ(refusal(R"({"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}",
                                          "tool_calls": [1]}]})",
                    type)
                .find("conversations[0] has both \"tool_calls\" and \"value\""),
            0U);
  EXPECT_EQ(refusal(R"({"conversations": [{"from": "gpt", "tool_calls": []}]})", type),
            "conversations[0]: \"value\" is missing");
}

TEST(Sharegpt, RefusesFunctionCallsThatAreNone) {
  const std::pair<const char*, const char*> cases[] = {
      {"f 1", "invalid JSON"},
      {R"({\"name\": \"f\", \"name\": \"g\", \"arguments\": {}})", "duplicate key \"name\""},
      {R"({\"name\": \"f\", \"arguments\": {}} and more)", "invalid JSON"},
      {R"(5)", "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"},
      {R"([])", "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"},
      {R"({\"arguments\": {}})",
       "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"},
      {R"({\"name\": 1, \"arguments\": {}})",
       "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"},
      {R"({\"name\": \"f\"})", "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"},
      {R"({\"name\": \"f\", \"arguments\": [1]})",
       "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"},
      {R"({\"name\": \"f\", \"arguments\": {}, \"id\": 1})",
       "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list"}};
  for (const auto& [value, message] : cases) {
    const std::string example =
        std::string(R"({"conversations": [{"from": "function_call", "value": ")") + value + "\"}]}";
    const std::string said = refusal(example.c_str(), DatasetType::kSharegpt);
    EXPECT_NE(said.find(message), std::string::npos) << value << "\n" << said;
    EXPECT_EQ(said.find("conversations[0]: value of function_call"), 0U) << said;
  }
}

TEST(Alpaca, BecomesChatTurns) {
  const auto type = DatasetType::kAlpaca;
  const char* example =
      R"({"system": "s", "history": [["h1", "h2"]], "instruction": "i", "input": "x", "output": "o"})";
  const std::string json = R"({"role":"user","content":"i\nx","input":"x"})";
  EXPECT_EQ(chat_of(parse<ChatSample>(example, type)),
            "system=s;user=h1;assistant=h2;user=i\nx" + json + ";assistant=o;");
  EXPECT_EQ(chat_of(parse<ChatSample>(R"({"instruction": "i", "output": "o"})", type)), "user=i;assistant=o;");
  EXPECT_EQ(chat_of(parse<ChatSample>(R"({"instruction": "", "input": "x", "output": "o"})", type)),
            R"(user=x{"role":"user","content":"x","input":"x"};assistant=o;)");
  EXPECT_NE(refusal(R"({"instruction":"i","output":"o","history":[["a"]]})", type).find("a pair"), std::string::npos);
}

TEST(Pretokenized, RemovesPaddingByPosition) {
  const auto sample = parse<TokenSample>(
      R"({"input_ids": [9, 5, 9, 9, 9], "labels": [-100, 5, 9, -100, -100], "attention_mask": [1, 1, 1, 0, 0]})",
      DatasetType::kPretokenized);
  EXPECT_EQ(sample.ids, (std::vector<std::int32_t>{9, 5, 9}));
  EXPECT_EQ(sample.labels, (std::vector<std::int32_t>{-100, 5, 9}));
  const auto left = parse<TokenSample>(R"({"input_ids": [9, 5], "labels": [-100, 5], "attention_mask": [0, 1]})",
                                       DatasetType::kPretokenized);
  EXPECT_EQ(left.ids, (std::vector<std::int32_t>{5}));
}

TEST(Pretokenized, RefusesMalformedExamples) {
  const auto type = DatasetType::kPretokenized;
  const std::pair<const char*, const char*> cases[] = {
      {R"({"labels": [1]})", "\"input_ids\" is missing"},
      {R"({"input_ids": [], "labels": []})", "input_ids is empty"},
      {R"({"input_ids": "1 2", "labels": [1]})", "input_ids is string"},
      {R"({"input_ids": [1, 2.0], "labels": [1, 2]})", "input_ids[1] is number, expected an integer"},
      {R"({"input_ids": [1, true], "labels": [1, 2]})", "input_ids[1] is boolean"},
      {R"({"input_ids": [1, -1], "labels": [1, 2]})", "input_ids[1] is -1"},
      {R"({"input_ids": [1, 4294967297], "labels": [1, 2]})", "input_ids[1] is 4294967297"},
      {R"({"input_ids": [1, 9223372036854775807], "labels": [1, 2]})", "input_ids[1] is 9223372036854775807"},
      {R"({"input_ids": [1, 2], "labels": [1]})", "labels has 1 values, input_ids 2"},
      {R"({"input_ids": [1, 2], "labels": [1, -7]})", "labels[1] is -7"},
      {R"({"input_ids": [1, 2], "labels": [1, -101]})", "labels[1] is -101"},
      {R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3], "attention_mask": [1, 0, 1]})", "a 0 between ones"},
      {R"({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 2]})", "a value other than 0 and 1"},
      {R"({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [0, 0]})", "has no 1"},
      {R"({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1]})", "attention_mask has 1 values"},
      {R"({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 0]})", "where attention_mask is 0"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_NE(refusal(text, type).find(message), std::string::npos) << text << "\n" << refusal(text, type);
  }
}

TEST(Text, IsAString) {
  EXPECT_EQ(parse<TextSample>(R"({"text": "t"})", DatasetType::kText).completion, "t");
  EXPECT_NE(refusal(R"({"text": ["t"]})", DatasetType::kText).find("text is array"), std::string::npos);
}

}  // namespace
}  // namespace lora_train::data
