#include "lora_train/data/encode/prompts.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/data/first_examples.h"
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
  // "where: message" of what the examples throw.
  std::string refusal(const std::string& examples) {
    try {
      read(examples);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
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
  const std::string file = file_.string();
  EXPECT_EQ(refusal("{\"prompt\": \"a\"}\nnot json\n").rfind(file + ":2:", 0), 0U);
  EXPECT_NE(refusal("").find(file), std::string::npos);
  EXPECT_NE(refusal("{\"text\": \"a\"}\n").find(file + ":1: the example (text) has no prompt"), std::string::npos);
  EXPECT_EQ(refusal("{\"prompt\": 3}\n"), file + ":1: prompt is number, expected a text or a list of messages");
  EXPECT_EQ(refusal("{\"prompt\": [5]}\n"), file + ":1: prompt[0] is number, expected an object with role and content");
  EXPECT_NE(refusal("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n").find("only assistant turns"),
            std::string::npos);
  // The template refuses this one.
  EXPECT_EQ(refusal("{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}\n"),
            file + ":1: a chat cannot begin with a tool (plain:1)");
  options_.raw = true;
  EXPECT_NE(refusal("{\"prompt\": \"\"}\n").find("the prompt is empty"), std::string::npos);
  EXPECT_NE(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n").find("remove --raw"),
            std::string::npos);
  options_ = {&tokenizer_, &template_, false, "be brief"};
  EXPECT_NE(refusal("{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}\n").find("remove --system"),
            std::string::npos);
}

TEST_F(Prompts, WithoutATemplateSayWhatHelps) {
  options_.chat_template = nullptr;
  try {
    make_prompt("hi", "--prompt", options_);
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_NE(error.message().find("--raw"), std::string::npos) << error.message();
  }
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
