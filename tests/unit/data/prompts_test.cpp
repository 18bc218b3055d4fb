#include "lora_train/data/encode/prompts.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/data/first_examples.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

class Prompts : public testing::Test {
 protected:
  std::string text(const Prompt& prompt) const { return tokenizer_.decode(prompt.ids, false); }
  std::vector<Prompt> read(const std::string& examples) {
    testing_support::write_text(file_, examples);
    return read_prompts(file_.string(), options_);
  }
  // Without the name of the file.
  std::string refusal(const std::string& examples) {
    const std::string said = testing_support::refusal<DataError>([&] { read(examples); }), file = file_.string();
    EXPECT_TRUE(said.starts_with(file)) << said;
    return said.substr(file.size());
  }

  testing_support::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "p.jsonl";
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  PromptOptions options_{&tokenizer_, &template_, false, {}};
};

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
  EXPECT_SAYS(refusal(message("user")), "remove --raw");
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
