#include "lora_train/data/encode/task_examples.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/data/first_examples.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

class TaskExamples : public testing::Test {
 protected:
  DatasetSpec write(const std::string& examples) {
    testing_support::write_text(file_, examples);
    DatasetSpec spec;
    spec.path = file_.string();
    spec.field_map = field_map_;
    return spec;
  }
  /// Two parts of ids as "first|second".
  std::string show(std::span<const std::int32_t> ids, std::size_t begin, std::size_t end) const {
    return tokenizer_.decode(ids.first(begin), false) + "|" + tokenizer_.decode(ids.subspan(begin, end - begin), false);
  }

  testing_support::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "quiz.jsonl";
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  std::map<std::string, std::string> field_map_;
};

class AnswerExamples : public TaskExamples {
 protected:
  std::vector<AnswerExample> read(const std::string& examples, std::optional<std::int64_t> max_examples = {},
                                  bool with_choices = false) {
    DataContext context;
    context.tokenizer = &tokenizer_;
    context.chat_template = &template_;
    return read_answer_examples(write(examples), max_examples, context, with_choices);
  }
  std::string refusal(const std::string& example) {
    return testing_support::refusal<DataError>(
        [&] { read("{\"prompt\": \"a\", \"completion\": \"b\"}\n" + example + "\n"); });
  }
  using TaskExamples::show;
  std::string show(const AnswerExample& example) const {
    return show(example.ids, example.answer_begin, example.answer_end);
  }
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
  const auto texts = read(R"({"prompt": "1+1=", "completion": "2"}
{"prompt": "a", "completion": "b", "correct": false})");
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
  const std::string second = file_.string() + ":2";
  for (const auto& [example, message] : {std::pair{R"({"prompt": "a", "completion": "b", "correct": "yes"})",
                                                   "correct is string, expected true or false"},
                                         {"no example", "JSON"},
                                         {R"({"prompt": "", "completion": "b"})", "no prompt"}}) {
    EXPECT_SAYS(refusal(example), message);
    EXPECT_TRUE(refusal(example).starts_with(second)) << refusal(example);
  }
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
  const auto refusal = [&](std::size_t begin, std::size_t end) {
    return testing_support::refusal<DataError>([&] { find_confidence(ids, begin, end, tokens, "f:1"); });
  };
  EXPECT_EQ(refusal(0, 5), "f:1: has more than one confidence token in its last answer; expected one of <1>, <0>");
  EXPECT_EQ(refusal(1, 3), "f:1: has no confidence token in its last answer; expected one of <1>, <0>");
  section.confidence_tokens.emplace_back("sure", 0.5);
  EXPECT_SAYS(testing_support::refusal<ConfigError>([&] { confidence_tokens(section, tokenizer); }),
              "\"sure\" is 4 tokens in this tokenizer, expected one");
}

class Choices : public TaskExamples {
 protected:
  std::vector<ChoiceSet> read(const std::string& examples, std::int64_t max_tokens = 0) {
    data_.eval_datasets = {write(examples)};
    return read_choice_sets(data_, options_, max_tokens);
  }
  using TaskExamples::show;
  std::string show(const Choice& choice) const { return show(choice.ids, choice.num_prompt, choice.ids.size()); }

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
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(examples[i].answer, i);
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
  for (const auto& [example, message] :
       {std::pair{R"({"prompt": "q", "choices": ["a"], "answer": 0})", "two or more"},
        {R"({"prompt": "q", "choices": ["a", ""], "answer": 0})", "choices[1] is empty"},
        {R"({"prompt": "q", "choices": ["a", "b"], "answer": 2})", "answer is 2"},
        {R"({"prompt": "q", "choices": ["a", "b"], "answer": "c"})", "neither one of the choices"},
        {R"({"choices": ["a", "b"], "answer": 0})", "neither prompt nor messages"},
        {R"({"prompt": "", "choices": ["a", "b"], "answer": 0})", "prompt is empty"},
        {R"({"prompt": "qqqq", "choices": ["a", "b"], "answer": 0})", "has 5 tokens"},
        {R"({"prompt": "q", "answer": 0})", "choices"}}) {
    const std::string said = testing_support::refusal<DataError>([&, e = example] { read(e, 4); });
    EXPECT_SAYS(said, message);
    EXPECT_TRUE(said.starts_with(file_.string() + ":1: ")) << said;
  }
}

class Prompts : public TaskExamples {
 protected:
  std::string text(const Prompt& prompt) const { return tokenizer_.decode(prompt.ids, false); }
  std::vector<Prompt> read(const std::string& examples) { return read_prompts(write(examples).path, options_); }
  // Without the name of the file.
  std::string refusal(const std::string& examples) {
    const std::string said = testing_support::refusal<DataError>([&] { read(examples); }), file = file_.string();
    EXPECT_TRUE(said.starts_with(file)) << said;
    return said.substr(file.size());
  }

  PromptOptions options_{&tokenizer_, &template_, false, {}};
};

TEST_F(Prompts, AreTheLinesOfATextFile) {
  testing_support::write_text(folder_ / "p.txt", "hi\n\n{\"prompt\": 1}\n");
  const std::vector<Prompt> prompts = read_prompts(folder_ / "p.txt", options_);
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(text(prompts[0]), "user:hi.");
  EXPECT_EQ(prompts[0].given, "\"hi\"");
  EXPECT_EQ(prompts[1].source, (folder_ / "p.txt").string() + ":3");
  EXPECT_EQ(text(prompts[1]), "user:{\"prompt\": 1}.");
  options_.raw = true;
  EXPECT_EQ(text(read_prompts(folder_ / "p.txt", options_)[0]), "hi");
}

TEST_F(Prompts, GoThroughTheChatTemplateUnlessRaw) {
  EXPECT_EQ(text(make_prompt("hi", "--prompt", options_)), "user:hi.");
  options_.system = "be brief";
  EXPECT_EQ(text(make_prompt("hi", "--prompt", options_)), "system:be brief.user:hi.");
  options_ = {&tokenizer_, nullptr, true, {}};
  const Prompt raw = make_prompt("hi", "--prompt", options_);
  EXPECT_EQ(text(raw), "hi");
  EXPECT_EQ(raw.given, "\"hi\"");
  const ByteTokenizer with_bos(true);
  options_.tokenizer = &with_bos;
  EXPECT_EQ(text(make_prompt("hi", "--prompt", options_)), "<s>hi");
}

TEST_F(Prompts, OfAFileAreTextsListsAndTrainingExamplesWithoutTheirAnswer) {
  const auto prompts = read(R"({"prompt": "a", "completion": "not read"}
{"prompt": [{"role": "user", "content": "b"}]}

{"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}]}
{"conversations": [{"from": "human", "value": "g"}, {"from": "gpt", "value": "h"}]}
{"instruction": "i", "input": "j", "output": "k"}
)");
  ASSERT_EQ(prompts.size(), 5U);
  EXPECT_EQ(text(prompts[0]), "user:a.");
  EXPECT_EQ(text(prompts[1]), "user:b.");
  EXPECT_EQ(text(prompts[2]), "user:c.assistant:d.user:e.");
  EXPECT_EQ(text(prompts[3]), "user:g.");
  EXPECT_EQ(text(prompts[4]), R"(user:i
j{"role":"user","content":"i\nj","input":"j"}.)");
  EXPECT_EQ(prompts[4].given, R"([{"role":"user","content":"i\nj"}])") << "input is for templates, not for servers";
  EXPECT_EQ(prompts[2].source, file_.string() + ":4");
  EXPECT_EQ(prompts[1].given, R"([{"role":"user","content":"b"}])");
}

TEST_F(Prompts, NameTheLineOfWhatIsWrong) {
  EXPECT_TRUE(refusal("{\"prompt\": \"a\"}\nnot json\n").starts_with(":2:"));
  refusal("");
  const auto message = [](const char* role) {
    return R"({"messages": [{"role": ")" + std::string(role) + R"(", "content": "a"}]})";
  };
  EXPECT_SAYS(refusal("{\"text\": \"a\"}"), ":1: the example (text) has no prompt");
  EXPECT_EQ(refusal("{\"prompt\": 3}"), ":1: prompt is number, expected a text or a list of messages");
  EXPECT_EQ(refusal("{\"prompt\": [5]}"), ":1: prompt[0] is number, expected an object with role and content");
  EXPECT_SAYS(refusal(message("assistant")), "only assistant turns");
  EXPECT_EQ(refusal(message("tool")), ":1: a chat cannot begin with a tool (plain:1)") << "said by the template";
  options_.raw = true;
  EXPECT_SAYS(refusal("{\"prompt\": \"\"}"), "the prompt is empty");
  EXPECT_SAYS(refusal(message("user")), "--raw=false");
  options_ = {&tokenizer_, &template_, false, "be brief"};
  EXPECT_SAYS(refusal(message("system")), "remove --system");
  options_.chat_template = nullptr;
  EXPECT_SAYS(testing_support::refusal<FormatError>([&] { make_prompt("hi", "--prompt", options_); }), "--raw");
}

TEST(FirstShortPrompt, IsAQuestionAloneWithItsAnswerOrAPromptAsItIs) {
  const testing_support::TemporaryFolder folder;
  const std::filesystem::path file = folder / "rows.jsonl";
  const auto found = [&](const std::string& rows) -> std::string {
    testing_support::write_text(file, rows);
    DatasetSpec spec;
    spec.path = file;
    const auto prompt = first_short_prompt(spec, DatasetUse::kTraining);
    return prompt ? (prompt->is_raw ? "raw " : "chat ") + prompt->text : "none";
  };
  const auto chat = [](const std::string& question) {
    return R"({"messages": [{"role": "user", "content": ")" + question +
           R"("}, {"role": "assistant", "content": "7"}]})"
           "\n";
  };
  EXPECT_EQ(found(chat("What's 3 plus 4?")), "chat What's 3 plus 4?");
  EXPECT_EQ(found(chat(std::string(81, 'x')) + chat("two\\nlines") + "not json\n" + chat("short")), "chat short");
  EXPECT_EQ(found("{\"prompt\": \"3 plus 4 is\", \"completion\": \" 7\"}\n"), "raw 3 plus 4 is");
  EXPECT_EQ(found(R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "a"}, )"
                  R"({"role": "assistant", "content": "7"}]})"
                  "\n"),
            "none");
  std::string late;
  for (int i = 0; i < 20; ++i) late += chat(std::string(81, 'x'));
  EXPECT_EQ(found(late + chat("late")), "none");
}

}  // namespace
}  // namespace lora_train::data
