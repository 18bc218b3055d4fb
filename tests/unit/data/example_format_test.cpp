#include "data/read/example_format.h"

#include <gtest/gtest.h>

#include "lora_train/base/text.h"
#include "support/refusal.h"

namespace lora_train::data {
namespace {

Json json(const std::string& text) {
  const JsonExample example = parse_json_example(text);
  EXPECT_FALSE(example.problem) << text;
  return example.value;
}

template <typename Kind>
Kind parse(const std::string& text, DatasetType type, const FieldMap& map = {}) {
  return std::get<Kind>(parse_example(json(text), type, map));
}

std::string refusal(const std::string& text, DatasetType type, const FieldMap& map = {}) {
  return testing_support::refusal<DataError>([&] { parse_example(json(text), type, map); });
}

/// Refusals of examples: what is put between `begin` and `end`, and a part of the message.
void expect_refused(DatasetType type, const std::string& begin, const std::string& end,
                    const std::vector<std::pair<const char*, const char*>>& cases) {
  for (const auto& [middle, message] : cases) {
    SCOPED_TRACE(middle);
    EXPECT_SAYS(refusal(begin + middle + end, type), message);
  }
}

std::string chat_of(const ChatSample& sample) {
  std::string out;
  for (const auto& message : sample.messages) out += message.role + "=" + message.content + message.json + ";";
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
    EXPECT_SAYS(found.reason, "the first example has");
  }
}

TEST(DetectLayout, SaysWhenAnotherLayoutWouldFitToo) {
  const Detection found = detect_layout(json(R"({"prompt": "a", "completion": "b", "messages": []})"), {});
  EXPECT_EQ(found.type, DatasetType::kMessages);
  EXPECT_SAYS(found.reason, "prompt_completion");
  EXPECT_EQ(detect_layout(json(R"({"messages": null, "text": "x"})"), {}).type, DatasetType::kText) << "no field";
}

TEST(CheckSameLayout, RefusesAnExampleThatWouldHaveDecidedOtherwise) {
  const Json both = json(R"({"text": "a", "messages": []})");
  EXPECT_THROW(check_same_layout(both, DatasetType::kText, {}), DataError);
  check_same_layout(both, DatasetType::kMessages, {});
  check_same_layout(json(R"({"text": "a", "messages": null})"), DatasetType::kText, {});
}

TEST(DetectLayout, UsesTheFieldMap) {
  const FieldMap map = {{"prompt", "question"}, {"completion", "answer"}};
  const Detection found = detect_layout(json(R"({"question": "q", "answer": "a"})"), map);
  EXPECT_EQ(found.type, DatasetType::kPromptCompletion);
  EXPECT_SAYS(found.reason, "question (as prompt)");
  const auto sample = parse<TextSample>(R"({"question": "q", "answer": "a"})", found.type, map);
  EXPECT_EQ(sample.prompt + "|" + sample.completion, "q|a");
}

std::string detection_refusal(const char* example) {
  return testing_support::refusal<DataError>([&] { detect_layout(json(example), {}); });
}

TEST(DetectLayout, UnknownKeysListTheLayouts) {
  const std::string said = detection_refusal(R"({"question": "q", "answer": "a"})");
  for (const char* part : {"question, answer", "prompt and completion", "field_map"}) EXPECT_SAYS(said, part);
}

TEST(DetectLayout, PairsOfAnswersNameTheLineForTheChosenOnes) {
  const char* pair = R"({"prompt": "q", "chosen": "a", "rejected": "b"})";
  const std::string advice = "preference training is not supported. To train on the chosen answers: field_map: ";
  EXPECT_TRUE(detection_refusal(pair).ends_with(advice + "{completion: chosen}.")) << detection_refusal(pair);
  EXPECT_TRUE(detection_refusal(R"({"chosen": [], "rejected": []})")
                  .ends_with(advice + "{messages: chosen}, where chosen is a whole chat."));
  const std::pair<const char*, const char*> forms[] = {
      {R"({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "c"})", "{text: chosen}."},
      {R"({"prompt": "q", "chosen": [], "rejected": []})", "{messages: chosen}, where chosen is a whole chat."},
      {R"({"prompt": [], "chosen": [], "rejected": []})", "{completion: chosen}."}};
  for (const auto& [example, map] : forms) EXPECT_TRUE(detection_refusal(example).ends_with(advice + map)) << example;
  EXPECT_EQ(detect_layout(json(pair), {{"completion", "chosen"}}).type, DatasetType::kPromptCompletion);
}

std::string map_refusal(const FieldMap& map) {
  return testing_support::refusal<ConfigError>([&] { check_field_map(map); });
}

TEST(FieldMapping, UnknownNameIsRefusedWithTheNearest) {
  EXPECT_EQ(map_refusal({{"prompt", "q"}}), "accepted");
  EXPECT_SAYS(map_refusal({{"promt", "q"}}), "did you mean \"prompt\"");
}

TEST(FieldMapping, LeavesUnreadWhatItHasNoNameFor) {
  const FieldMap map = {{"train", ""}, {"weight", ""}, {"tools", ""}, {"system", ""}};
  const auto sample = parse<ChatSample>(
      R"({"system": "s", "messages": [{"role": "user", "content": "a", "weight": 3},
          {"role": "assistant", "content": "b", "train": "no", "train_detail": [], "weight": -1}], "tools": 1})",
      DatasetType::kMessages, map);
  EXPECT_EQ(sample.messages.size(), 2u);
  EXPECT_EQ(sample.weights, (std::vector<std::optional<float>>{std::nullopt, std::nullopt}));
  EXPECT_EQ(sample.tools_json, "");
  EXPECT_EQ(map_refusal(map), "accepted");
  EXPECT_EQ(
      map_refusal({{"messages", ""}}),
      "field_map: \"messages\" is null; only these can be left unread: train, weight, system, input, history, tools, "
      "chat_template_kwargs, loss, training, trainable, masked, loss_mask");
}

TEST(Messages, KeepsRolesContentsOrderAndOtherFields) {
  const auto sample = parse<ChatSample>(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "x"},
                       {"tool_calls": [1], "role": "assistant", "name": "x"}, {"content": "a", "role": "user"}],
          "tools": "[{\"t\": 1}]", "chat_template_kwargs": {"enable_thinking": false}})",
      DatasetType::kMessages);
  EXPECT_EQ(chat_of(sample), R"(user=a;assistant=b{"role":"assistant","content":"b","name":"x"};)"
                             R"(assistant={"tool_calls":[1],"role":"assistant","name":"x"};)"
                             R"(user=a{"content":"a","role":"user"};)");
  EXPECT_EQ(sample.tools_json, "[{\"t\":1}]");
  EXPECT_EQ(sample.kwargs_json, "{\"enable_thinking\":false}");
}

TEST(Messages, ContentIsMissingOnlyBesideCallsOfTheAssistant) {
  const auto sample = parse<ChatSample>(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [1]}]})",
                                        DatasetType::kMessages);
  EXPECT_EQ(chat_of(sample), "assistant={\"role\":\"assistant\",\"content\":null,\"tool_calls\":[1]};");
  const char* is_null = "messages[0]: \"content\" is null";
  expect_refused(DatasetType::kMessages, R"({"messages": [{"role": )", "}]}",
                 {{R"("user", "content": null)", is_null},
                  {R"("assistant", "content": null, "tool_calls": null)", is_null},
                  {R"("assistant", "content": null, "tool_calls": [])", is_null},
                  {R"("user", "content": null, "tool_calls": [1])", is_null},
                  {R"("tool", "tool_calls": [1])", "messages[0]: \"content\" is missing"}});
}

TEST(Messages, AFieldMapRenamesInPlace) {
  const FieldMap map = {{"role", "who"}, {"content", "says"}};
  const auto sample =
      parse<ChatSample>(R"({"messages": [{"id": 1, "who": "user", "says": "a"}, {"who": "user", "says": "b"}]})",
                        DatasetType::kMessages, map);
  EXPECT_EQ(chat_of(sample), "user=a{\"id\":1,\"role\":\"user\",\"content\":\"a\"};user=b;");
  const char* both = R"({"messages": [{"who": "user", "says": "a", "content": "b"}]})";
  EXPECT_EQ(refusal(both, DatasetType::kMessages, map).find("messages[0] has both \"content\" and \"says\""), 0U);
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
  expect_refused(DatasetType::kMessages, R"({"messages": [{"role": "assistant", "content": "a", )", "}]}",
                 {{R"("weight": 4e38)", "messages[0].weight is 4e+38"},
                  {R"("weight": 1e-39)", "messages[0].weight is 1e-39"},
                  {R"("weight": -1e-300)", "messages[0].weight is -1e-300"},
                  {R"("weight": [1])", "messages[0].weight is array, expected 0"},
                  {R"("train": false, "weight": 0.5)", "train is false and weight is 0.5"},
                  {R"("weight": -1)", "messages[0].weight is -1"},
                  {R"("weight": "0")", "messages[0].weight is string, expected 0"},
                  {R"("weight": true)", "messages[0].weight is boolean, expected 0"},
                  {R"("train": 2)", "messages[0].train is number, expected true or false"},
                  {R"("weight": NaN)", "NaN, Infinity or"},
                  {R"("train": "false")", "messages[0].train is string, expected true or false"},
                  {R"("train": true, "weight": 0)", "train is true and weight is 0"},
                  {R"("train_detail": [])", "messages[0].train_detail is not supported"}});
}

TEST(Messages, MarksOfOtherTrainersSayIfATurnIsTrained) {
  const std::pair<const char*, float> cases[] = {{R"("loss": false)", 0},
                                                 {R"("loss": 0)", 0},
                                                 {R"("loss": 1)", 1},
                                                 {R"("training": false)", 0},
                                                 {R"("training": true)", 1},
                                                 {R"("masked": true)", 0},
                                                 {R"("masked": 0)", 1},
                                                 {R"("loss_mask": 0)", 0},
                                                 {R"("trainable": false)", 0},
                                                 {R"("train": 0)", 0},
                                                 {R"("loss_mask": 1, "masked": false)", 1},
                                                 {R"("loss": null, "masked": 1, "weight": 0)", 0},
                                                 {R"("trainable": true, "weight": 0.5)", 0.5F}};
  for (const auto& [mark, weight] : cases) {
    const std::string turn = std::string(R"("value": "b", )") + mark + "}]}";
    const auto chat = parse<ChatSample>(R"({"conversations": [{"from": "gpt", )" + turn, DatasetType::kSharegpt);
    EXPECT_EQ(chat.weights, std::vector<std::optional<float>>{weight}) << mark;
  }
  const auto unread = parse<ChatSample>(R"({"messages": [{"role": "assistant", "content": "b", "loss": "x"}]})",
                                        DatasetType::kMessages, {{"loss", ""}});
  EXPECT_EQ(unread.weights.front(), std::nullopt);
  expect_refused(DatasetType::kMessages, R"({"messages": [{"role": "assistant", "content": "b", )", "}]}",
                 {{R"("loss": 0.5)", "messages[0].loss is number, expected true or false"},
                  {R"("masked": "yes")", "messages[0].masked is string, expected true or false"},
                  {R"("loss": true, "weight": 0)", "messages[0]: loss is true and weight is 0; keep one of them"},
                  {R"("loss": true, "masked": true)", "messages[0]: masked is true and loss is true; keep one"}});
}

TEST(Messages, RolesNotEveryTemplateKnowsKeepTheirNamesUnlessMapped) {
  const char* const roles[] = {"developer", "ipython", "environment"};
  for (const std::string role : roles) {
    const auto chat =
        parse<ChatSample>(R"({"messages": [{"role": ")" + role + R"(", "content": "a"}]})", DatasetType::kMessages);
    EXPECT_EQ(chat.messages.front().role, role);
    EXPECT_EQ(
        parse<ChatSample>(R"({"conversations": [{"from": ")" + role + R"(", "value": "a"}]})", DatasetType::kSharegpt)
            .messages.front()
            .role,
        role);
  }
  const auto chat =
      parse<ChatSample>(R"({"messages": [{"role": "developer", "content": "a"}, {"role": "User", "content": "b"}]})",
                        DatasetType::kMessages, {{"system", "developer"}, {"user", "User"}});
  EXPECT_EQ(chat_of(chat), R"(system=a;user=b;)");
  const std::string said = refusal(
      R"({"messages": [{"role": "System", "content": "a"}, {"role": "User", "content": "a"}, {"role": "Assistant", "content": "b"}]})",
      DatasetType::kMessages);
  EXPECT_SAYS(said, R"("System", "User", "Assistant"; known are)");
  EXPECT_SAYS(said, "field_map: {system: System, user: User, assistant: Assistant}");
}

TEST(Messages, ContentsOfTextPartsAreOneText) {
  const auto chat = parse<ChatSample>(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a "}, {"text": "b"}]}, {"role": "assistant", "content": []}]})",
      DatasetType::kMessages);
  EXPECT_EQ(chat_of(chat), R"(user=a b{"role":"user","content":[{"type":"text","text":"a "},{"text":"b"}]};)"
                           R"(assistant={"role":"assistant","content":[]};)");
  expect_refused(DatasetType::kMessages, R"({"messages": [{"role": "user", "content": [)", "]}]}",
                 {{R"("a")", "messages[0].content[0] is string, expected a part"},
                  {R"({"type": "text"})", "messages[0].content[0].text is null, expected a string"},
                  {R"({"type": "image_url", "image_url": {}})", R"(has the type "image_url"; only text is trained)"}});
}

TEST(Media, AColumnOfNothingIsText) {
  for (const char* nothing :
       {"null", "[]", "\"\"", "[null]", R"({"bytes": null, "path": null})", R"([{"path": ""}])"}) {
    for (const char* column : {"image", "images", "audio", "audios", "video", "videos"}) {
      const std::string example = fmt::format(R"({{"instruction": "a", "output": "b", "{}": {}}})", column, nothing);
      EXPECT_EQ(refusal(example, DatasetType::kAlpaca), "accepted") << example;
    }
  }
  for (const char* something : {"0", "[\"a.png\"]", R"({"bytes": {"bytes": 9}, "path": null})", "[null, 1]"})
    EXPECT_SAYS(refusal(fmt::format(R"({{"text": "a", "videos": {}}})", something), DatasetType::kText),
                "\"videos\" is not empty");
}

TEST(Preferences, ABooleanLabelIsRefusedAndOthersAreNot) {
  const auto with = [](const char* label) { return fmt::format(R"({{"prompt": "a", "completion": "b", {}}})", label); };
  for (const char* label : {R"("label": true)", R"("label": false)", R"("label": "True")", R"("kto_tag": false)"})
    EXPECT_SAYS(refusal(with(label), DatasetType::kPromptCompletion),
                "as for KTO, but preference training is not supported");
  for (const char* label : {R"("label": 1)", R"("label": "spam")", R"("label": null)"})
    EXPECT_EQ(refusal(with(label), DatasetType::kPromptCompletion), "accepted") << label;
  EXPECT_EQ(refusal(R"({"text": "b", "label": true})", DatasetType::kText), "accepted");
}

TEST(UnreadColumns, AreThoseThatNoReaderOfTheLayoutNames) {
  const auto unread = [](const char* text, DatasetType type, const FieldMap& map = {}) {
    return join(unread_columns(json(text), type, map));
  };
  EXPECT_EQ(
      unread(R"({"source": 1, "messages": [], "tools": null, "images": [], "system": "s"})", DatasetType::kMessages),
      "source, images, system");
  EXPECT_EQ(unread(R"({"messages": [], "system": "s"})", DatasetType::kMessages, {{"system", "system"}}), "");
  EXPECT_EQ(unread(R"({"messages": [], "tools": [], "weight": 1})", DatasetType::kMessages, {{"tools", ""}}),
            "tools, weight");
  EXPECT_EQ(unread(R"({"question": "a", "prompt": "b", "completion": "c", "tools": []})",
                   DatasetType::kPromptCompletion, {{"prompt", "question"}}),
            "prompt, tools");
  EXPECT_EQ(unread(R"({"prompt": [], "completion": [], "tools": []})", DatasetType::kPromptCompletion), "");
  EXPECT_EQ(unread(R"({"input_ids": [], "seq_lengths": [], "token_type_ids": []})", DatasetType::kPretokenized),
            "token_type_ids");
}

TEST(Messages, RefusesMalformedConversations) {
  const auto type = DatasetType::kMessages;
  expect_refused(type, R"({"messages": )", "}",
                 {{"[]", "messages is empty"},
                  {R"("hi")", "messages is a string, but its text was rejected"},
                  {R"("{}")", "messages is string, expected a list of messages, or a string that holds one as JSON"},
                  {R"(["hi"])", "messages[0] is string"},
                  {R"([{"content": "a"}])", "\"role\" is missing"},
                  {R"([{"role": "user"}])", "\"content\" is missing"},
                  {R"([{"role": "bot", "content": "a"}])", "an unknown role: \"bot\";"},
                  {R"([{"role": "user", "content": 5}])", "messages[0].content is number"},
                  {R"([{"role": 5, "content": "a"}])", "messages[0].role is number"},
                  {R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}])",
                   "messages[0].content[1] has the type \"image\"; only text is trained"},
                  {R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": 5}]}])", "has the type 5"},
                  {R"([{"role": "user", "content": "a"}], "images": ["a.png"])", "\"images\" is not empty; only text"},
                  {R"([{"role": "user", "content": "a"}], "audio": "a.wav")", "\"audio\" is not empty"},
                  {R"([{"role": "user", "content": "a"}], "video": {"path": "v"})", "\"video\" is not empty"},
                  {R"([{"role": "user", "content": "a"}], "tools": "no json")", "tools"},
                  {R"([{"role": "user", "content": "a"}], "tools": 5)", "tools is number, expected a list"},
                  {R"([{"role": "user", "content": "a"}], "chat_template_kwargs": [1])",
                   "chat_template_kwargs is array, expected an object"}});
  const std::string roles =
      refusal(R"({"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]})", type);
  EXPECT_SAYS(roles, "messages[0].role is an unknown role: \"human\", \"gpt\"; known are");
  EXPECT_SAYS(roles, "field_map: {user: human, assistant: gpt}");
  EXPECT_SAYS(refusal(R"({"text": "a"})", type), "\"messages\" is missing");
}

TEST(Messages, ToolsInAStringAreReadAsStrictlyAsTheExample) {
  const auto with = [](const std::string& tools) {
    return R"({"messages": [{"role": "user", "content": "a"}], "tools": ")" + tools + "\"}";
  };
  const auto said = [&](const std::string& tools) { return refusal(with(tools), DatasetType::kMessages); };
  EXPECT_EQ(said("[123456789012345678901234567890]"),
            "tools has NaN, Infinity or an integer beyond 64 bits; write a string or null");
  EXPECT_SAYS(said(R"([{\"a\": 1, \"a\": 2}])"), "rejected: duplicate key \"a\"; an object has each key once");
  EXPECT_EQ(said("[NaN]"), "tools has NaN, Infinity or an integer beyond 64 bits; write a string or null");
  EXPECT_EQ(said("5"), "tools is string, expected a list, or a string that holds one as JSON");
  EXPECT_SAYS(said("[1] [2]"), "rejected: invalid JSON: ");
  EXPECT_SAYS(said(std::string(10'000, '[')), "deeper than 64");
  EXPECT_EQ(said(R"([{\"a\": [-9223372036854775808, 1.5, true, null, \"x\"]}])"), "accepted");
  for (const char* blank : {"", " \\n\\t"}) {
    EXPECT_EQ(parse<ChatSample>(with(blank), DatasetType::kMessages).tools_json, "");
  }
}

TEST(Messages, ManyFieldsTakeLinearTime) {
  std::string message = R"({"role": "user", "content": "a")";
  for (int i = 0; i < 9990; ++i) message += ",\"k" + std::to_string(i) + "\": 0";
  const auto sample = parse<ChatSample>(R"({"messages": [)" + message + "}]}", DatasetType::kMessages);
  EXPECT_EQ(Json::parse(sample.messages[0].json).size(), 9992U);
}

TEST(PromptCompletion, TakesStringsOrMessages) {
  const auto text = parse<TextSample>(R"({"prompt": "p", "completion": "c"})", DatasetType::kPromptCompletion);
  EXPECT_EQ(text.prompt + "|" + text.completion, "p|c");
  const auto chat = parse<ChatSample>(
      R"({"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]})",
      DatasetType::kPromptCompletion);
  EXPECT_EQ(chat_of(chat), "user=p;assistant=c;");
  EXPECT_EQ(chat.num_prompt_messages, 1U);
  expect_refused(DatasetType::kPromptCompletion, R"({"prompt": )", "}",
                 {{R"([{"role": "user", "content": "p"}], "completion": "c")", "both must be strings, or both lists"},
                  {R"("p", "completion": 3)", "completion is number"}});
}

TEST(Sharegpt, TurnsBecomeMessages) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}])",
       "system=s;user=a;assistant=b;"},
      {R"("conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
                            {"from": "observation", "value": "2"}])",
       R"(assistant={"role":"assistant","content":"","tool_calls":[{"type":"function",)"
       R"("function":{"name":"f","arguments":{"x":1}}}]};tool=2;)"},
      // Other fields go with their turn.
      {R"("conversations": [
          {"from": "human", "value": "a", "name": "x"},
          {"from": "gpt", "value": "b", "tool_calls": [1], "reasoning_content": "r"},
          {"from": "gpt", "value": null, "tool_calls": [1]},
          {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}", "reasoning_content": "r"}])",
       R"(user=a{"role":"user","content":"a","name":"x"};)"
       R"(assistant=b{"role":"assistant","content":"b","tool_calls":[1],"reasoning_content":"r"};)"
       R"(assistant={"role":"assistant","content":null,"tool_calls":[1]};)"
       R"(assistant={"role":"assistant","content":"","tool_calls":[{"type":"function",)"
       R"("function":{"name":"f","arguments":{}}}],"reasoning_content":"r"};)"},
      // Messages with our names are read as messages.
      {R"("conversations": [{"role": "human", "content": "a"},
                            {"role": "assistant", "content": "b", "reasoning_content": "r"},
                            {"role": "assistant", "tool_calls": [1]}])",
       R"(user=a;assistant=b{"role":"assistant","content":"b","reasoning_content":"r"};)"
       R"(assistant={"role":"assistant","tool_calls":[1]};)"}};
  for (const auto& [turns, chat] : cases) {
    EXPECT_EQ(chat_of(parse<ChatSample>("{" + std::string(turns) + "}", DatasetType::kSharegpt)), chat);
  }
}

TEST(Sharegpt, NamesOfOtherToolsAreAdvisedUpon) {
  for (const std::string theirs : {"bot", "model", "ai", "chatbot"}) {
    const std::string example = R"({"conversations": [{"from": ")" + theirs + R"(", "value": "a"}]})";
    EXPECT_SAYS(refusal(example, DatasetType::kSharegpt), "Name yours in field_map: {assistant: " + theirs + "}");
  }
  EXPECT_SAYS(refusal(R"({"conversations": [{"from": "alien", "value": "a"}]})", DatasetType::kSharegpt), "alien");
}

TEST(Sharegpt, RefusesTwoNamesForOneThing) {
  const auto said = [](const char* turn) {
    return refusal(R"({"conversations": [{"from": )" + std::string(turn) + "}]}", DatasetType::kSharegpt);
  };
  EXPECT_EQ(said(R"("gpt", "value": "a", "content": "b")"),
            "conversations[0] has both \"content\" and \"value\", which mean the same; keep one of them");
  EXPECT_EQ(said(R"("gpt", "value": "a", "role": null, "content": null)"), "accepted");
  EXPECT_SAYS(said(R"("function_call", "value": "{\"name\": \"f\", \"arguments\": {}}", "tool_calls": [1])"),
              "conversations[0] has both \"tool_calls\" and \"value\"");
  EXPECT_EQ(said(R"("gpt", "tool_calls": [])"), "conversations[0]: \"value\" is missing");
  EXPECT_SAYS(refusal(R"({"conversations": []})", DatasetType::kSharegpt), "conversations is empty");
}

TEST(Sharegpt, RefusesFunctionCallsThatAreNone) {
  const std::string begin = R"({"conversations": [{"from": "function_call", "value": ")", end = "\"}]}";
  expect_refused(DatasetType::kSharegpt, begin, end,
                 {{"f 1", "conversations[0]: value of function_call"},
                  {"f 1", "invalid JSON"},
                  {R"({\"name\": \"f\", \"name\": \"g\", \"arguments\": {}})", "duplicate key \"name\""},
                  {R"({\"name\": \"f\", \"arguments\": {}} and more)", "invalid JSON"}});
  for (const char* value :
       {"5", "[]", R"({\"arguments\": {}})", R"({\"name\": 1, \"arguments\": {}})", R"({\"name\": \"f\"})",
        R"({\"name\": \"f\", \"arguments\": [1]})", R"({\"name\": \"f\", \"arguments\": {}, \"id\": 1})"}) {
    const std::string said = refusal(begin + value + end, DatasetType::kSharegpt);
    EXPECT_EQ(said.find("conversations[0]: value of function_call"), 0U) << said;
    EXPECT_SAYS(said, "expected JSON {\"name\": ..., \"arguments\": {...}} with only these fields, or a list");
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
  EXPECT_SAYS(refusal(R"({"instruction":"i","output":"o","history":[["a"]]})", type), "a pair");
  EXPECT_SAYS(refusal(R"({"instruction": "a", "output": 1})", type), "output is number");
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

TEST(Pretokenized, DocumentsAreWhatAnyPackedFieldSays) {
  const auto documents = [](const std::string& fields) {
    return parse<TokenSample>(R"({"input_ids": [5, 6, 7, 8, 9], )" + fields + "}", DatasetType::kPretokenized)
        .documents;
  };
  for (const char* fields :
       {R"("position_ids": [0, 1, 0, 0, 1])", R"("seq_idx": [0, 0, 1, 2, 2])", R"("seq_lengths": [2, 1, 0, 2])",
        R"("cu_seq_lens_q": [0, 2, 3, 5], "seq_lengths": [2, 1, 2])"})
    EXPECT_EQ(documents(fields), (std::vector<std::size_t>{0, 2, 3})) << fields;
  EXPECT_EQ(documents(R"("position_ids": [1, 1, 0, 1, 2], "attention_mask": [0, 0, 1, 1, 1])"),
            std::vector<std::size_t>{0});
  EXPECT_TRUE(documents(R"("labels": [1, 1, 1, 1, 1])").empty());
  expect_refused(DatasetType::kPretokenized, R"({"input_ids": [5, 6, 7], )", "}",
                 {{R"("position_ids": [1, 2, 3])", "position_ids[0] is 1; the positions of a document count from 0"},
                  {R"("position_ids": [0, 1, 3])", "position_ids[2] is 3"},
                  {R"("position_ids": [0, 1])", "position_ids has 2 values, input_ids 3"},
                  {R"("position_ids": [[0, 1, 2]])", "position_ids[0] is array, expected an integer"},
                  {R"("seq_lengths": [1, 1])", "seq_lengths describes 2 tokens, and input_ids has 3"},
                  {R"("seq_lengths": [2, 2])", "seq_lengths describes 4 tokens, and input_ids has 3"},
                  {R"("cu_seq_lens_q": [1, 3])", "cu_seq_lens_q[0] is 1; expected 0"},
                  {R"("cu_seq_lens_q": [0, 2, 1, 3])", "cu_seq_lens_q[2] is 1; expected"},
                  {R"("seq_lengths": [1, 2], "seq_idx": [0, 0, 1])",
                   "seq_lengths describes other documents than the field before it"}});
}

TEST(Pretokenized, RefusesMalformedExamples) {
  expect_refused(DatasetType::kPretokenized, "{", "}",
                 {{R"("labels": [1])", "\"input_ids\" is missing"},
                  {R"("input_ids": [], "labels": [])", "input_ids is empty"},
                  {R"("input_ids": "1 2", "labels": [1])", "input_ids is string"},
                  {R"("input_ids": [1, 2.0], "labels": [1, 2])", "input_ids[1] is number, expected an integer"},
                  {R"("input_ids": [1, true], "labels": [1, 2])", "input_ids[1] is boolean"},
                  {R"("input_ids": [1, -1], "labels": [1, 2])", "input_ids[1] is -1"},
                  {R"("input_ids": [1, 4294967297], "labels": [1, 2])", "input_ids[1] is 4294967297"},
                  {R"("input_ids": [1, 9223372036854775807], "labels": [1, 2])", "input_ids[1] is 9223372036854775807"},
                  {R"("input_ids": [1, 2], "labels": [1])", "labels has 1 values, input_ids 2"},
                  {R"("input_ids": [1, 2], "labels": [1, -7])", "labels[1] is -7"},
                  {R"("input_ids": [1, 2], "labels": [1, -101])", "labels[1] is -101"},
                  {R"("input_ids": [1, 2, 3], "labels": [1, 2, 3], "attention_mask": [1, 0, 1])", "a 0 between ones"},
                  {R"("input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 2])", "a value other than 0 and 1"},
                  {R"("input_ids": [1, 2], "labels": [1, 2], "attention_mask": [0, 0])", "has no 1"},
                  {R"("input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1])", "attention_mask has 1 values"},
                  {R"("input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 0])", "where attention_mask is 0"}});
}

TEST(Text, IsAString) {
  EXPECT_EQ(parse<TextSample>(R"({"text": "t"})", DatasetType::kText).completion, "t");
  EXPECT_SAYS(refusal(R"({"text": ["t"]})", DatasetType::kText), "text is array");
  EXPECT_SAYS(refusal(R"({"text": null})", DatasetType::kText), "\"text\" is null");
}

}  // namespace
}  // namespace lora_train::data
