#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/file.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::tokenizer {
namespace {

using testing_support::TemporaryFolder;

TEST(ModelFolder, WithoutFilesThereIsNeitherTokenizerNorTemplate) {
  const TemporaryFolder folder;
  EXPECT_EQ(load_tokenizer_if_present(folder.path()), nullptr);
  EXPECT_THROW(Tokenizer::load(folder.path()), FormatError);
  EXPECT_EQ(load_chat_template("tokenizer", folder.path()), nullptr);
  write_file_atomic(folder / "tokenizer_config.json", R"({"bos_token": null})");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path()), nullptr);
  write_file_atomic(folder / "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path()), nullptr);
}

TEST(ModelFolder, AFileComesBeforeTheTemplateOfTheFolder) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "chat_template.jinja", "of the folder");
  write_file_atomic(folder / "mine.jinja", "mine");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path())->source(), "of the folder");
  EXPECT_EQ(load_chat_template(folder / "mine.jinja", folder.path())->source(), "mine");
  EXPECT_THROW(load_chat_template(folder / "none.jinja", folder.path()), IoError);
}

TEST(ModelFolder, ABuiltInTemplateIsNamed) {
  const std::vector<Message> chat = {{"user", "Hi"}, {"assistant", "Yes"}};
  const auto text = [&](const std::string& name) { return load_chat_template(name, {})->render(chat).text; };
  EXPECT_EQ(text("chatml"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n");
  EXPECT_EQ(text("llama3"),
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
            "\n\nYes<|eot_id|>");
  EXPECT_EQ(text("gemma"), "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYes<end_of_turn>\n");
  EXPECT_SAYS(testing_support::refusal<IoError>([] { load_chat_template("chatlm", {}); }), "Built in: chatml, qwen2.5");
}

TEST(ModelFolder, TheVersionOfATekkenJsonChoosesATemplate) {
  const TemporaryFolder folder;
  const auto chosen = [&](const std::string& version) {
    write_file_atomic(folder / "tekken.json", R"({"config": {"version": ")" + version + R"("}})");
    const auto found = load_chat_template("tokenizer", folder.path());
    return found == nullptr ? "none" : found->name();
  };
  EXPECT_EQ(chosen("v3"), "none") << "mistral-v3 is for tokenizer.model";
  for (const std::string version : {"v7", "v11", "v13", "v15"})
    EXPECT_EQ(chosen(version), "built-in template mistral-" + version);
  EXPECT_THROW(chosen("v99"), FormatError);
  write_file_atomic(folder / "tokenizer.json", "{}");
  EXPECT_EQ(chosen("v7"), "none") << "the tokenizer is another file";
  write_file_atomic(folder / "chat_template.jinja", "of the folder");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path())->source(), "of the folder");
}

std::string mistral_text(const std::string& version, const std::vector<Message>& chat, const std::string& tools = "",
                         const std::string& kwargs = "") {
  return load_chat_template("mistral-" + version, {})->render(chat, {.tools_json = tools, .kwargs_json = kwargs}).text;
}

TEST(ModelFolder, MistralTemplatesWriteTools) {
  const std::vector<Message> chat = {{"system", "S"},
                                     {"user", "Q"},
                                     {"assistant", "", R"({"role": "assistant", "tool_calls": [
        {"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "123456789", "function": {"name": "g", "arguments": "{}"}}]})"},
                                     {"tool", "", R"({"role": "tool", "content": "2", "tool_call_id": "123456789"})"},
                                     {"tool", "", R"({"role": "tool", "content": "1", "tool_call_id": "abcdefghi"})"},
                                     {"assistant", "A "}};
  const std::string tools = R"([{"function": {"name": "f", "strict": true}}])";
  const std::string shown =
      "[AVAILABLE_TOOLS][{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": "
      "\"\", \"parameters\": {}}}][/AVAILABLE_TOOLS]";
  const std::string begin = "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]" + shown + "[INST]Q[/INST]";
  EXPECT_EQ(mistral_text("v7", chat, tools),
            begin +
                "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", "
                "\"arguments\": {}, \"id\": \"123456789\"}]</s>[TOOL_RESULTS]123456789[TOOL_CONTENT]2[/TOOL_RESULTS]"
                "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]1[/TOOL_RESULTS]A</s>");
  EXPECT_EQ(mistral_text("v11", chat, tools),
            begin +
                "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"x\": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}</s>"
                "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]1[/TOOL_RESULTS]"
                "[TOOL_RESULTS]123456789[TOOL_CONTENT]2[/TOOL_RESULTS]A</s>");
  const std::string later =
      "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}</s>[TOOL_RESULTS]1[/TOOL_RESULTS]"
      "[TOOL_RESULTS]2[/TOOL_RESULTS]A</s>";
  EXPECT_EQ(mistral_text("v13", chat, tools), begin + later);
  EXPECT_EQ(mistral_text("v15", chat, tools),
            "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]" + shown +
                "[MODEL_SETTINGS]{\"reasoning_effort\": \"none\"}[/MODEL_SETTINGS][INST]Q[/INST]" + later);
}

TEST(ModelFolder, MistralTemplatesTrainThoughtsWithTheAnswer) {
  const std::vector<Message> chat = {
      {"user", "Q"}, {"assistant", "", R"({"role": "assistant", "content": "A", "reasoning_content": "hm"})"}};
  const RenderedChat rendered = load_chat_template("mistral-v13", {})->render(chat);
  EXPECT_EQ(rendered.text, "<s>[INST]Q[/INST][THINK]hm[/THINK]A</s>");
  ASSERT_EQ(rendered.spans.size(), 1U);
  EXPECT_EQ(rendered.text.substr(rendered.spans[0].first), "[THINK]hm[/THINK]A</s>");
  EXPECT_TRUE(rendered.omissions.empty());
  EXPECT_SAYS(testing_support::refusal<DataError>([&] { mistral_text("v11", chat); }), "\"thinking\" is not possible");
}

TEST(ModelFolder, MistralTemplatesTakeTheReasoningEffort) {
  EXPECT_EQ(mistral_text("v15", {{"user", "Q"}}, "", R"({"reasoning_effort": "high"})"),
            "<s>[MODEL_SETTINGS]{\"reasoning_effort\": \"high\"}[/MODEL_SETTINGS][INST]Q[/INST]");
  EXPECT_SAYS(testing_support::refusal<DataError>([] {
                mistral_text("v15", {{"user", "Q"}}, "", R"({"reasoning_effort": "hgih"})");
              }),
              "expected none, minimal");
}

TEST(ModelFolder, ABrokenTemplateIsNeverPassedOver) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "chat_template.jinja", "{% if %}");
  EXPECT_THROW(load_chat_template("tokenizer", folder.path()), FormatError);
  EXPECT_THROW(load_chat_template(folder / "chat_template.jinja", {}), FormatError);
  std::filesystem::remove(folder / "chat_template.jinja");
  write_file_atomic(folder / "tokenizer_config.json", "{");
  EXPECT_THROW(load_chat_template("tokenizer", folder.path()), FormatError);
}

template <typename Load>
void expect_load_refused(const std::filesystem::path& file, const std::string& message, Load load) {
  const std::string said = testing_support::refusal<FormatError>(load);
  EXPECT_TRUE(said.starts_with(file.string() + ": ")) << said;
  EXPECT_SAYS(said, message);
}

TEST(ModelFolder, GitLfsPointersAreRefusedByTheirName) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
  for (const char* name :
       {"chat_template.jinja", "tokenizer_config.json", "tokenizer.json", "tokenizer.model", "tekken.json"}) {
    const TemporaryFolder folder;
    write_file_atomic(folder / name, pointer);
    expect_load_refused(folder / name, "Git LFS pointer", [&] {
      load_chat_template("tokenizer", folder.path());
      load_tokenizer_if_present(folder.path());
    });
  }
  const TemporaryFolder folder;
  write_file_atomic(folder / "mine.jinja", pointer);
  expect_load_refused(folder / "mine.jinja", "git lfs pull", [&] { load_chat_template(folder / "mine.jinja", {}); });
}

TEST(ModelFolder, PipesAndFoldersAreNotRead) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe.jinja";
  std::filesystem::create_directories(folder / "folder.jinja");
  expect_load_refused(folder / "folder.jinja", "is a folder; a regular file was expected",
                      [&] { load_chat_template(folder / "folder.jinja", {}); });
  expect_load_refused("/dev/null", "a regular file was expected", [&] { load_chat_template("/dev/null", {}); });
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ::alarm(20);  // a read of the pipe would never end
  expect_load_refused(pipe, "is a pipe, a socket or a device; a regular file was expected",
                      [&] { load_chat_template(pipe, {}); });
  ::alarm(0);
}

}  // namespace
}  // namespace lora_train::tokenizer
