// Every golden chat as an example of a dataset: text, spans, ids and labels equal to transformers'.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>

#include "encode/encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/loaded_tokenizer.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

struct GoldenFile {
  const char* name;
  const char* folder;         // of the model
  const char* template_file;  // in it
  int examples, errors;
  const char* tokenizer_file = nullptr;  // in place of tokenizer.json
  const char* dialogues = nullptr;       // the golden file with the messages, where this one has only their ids
};

void PrintTo(const GoldenFile& file, std::ostream* out) { *out << file.name; }

// Renders with what some goldens have and examples of a dataset never ask for, and keeps what it rendered.
class GoldenTemplate : public tokenizer::ChatTemplate {
 public:
  GoldenTemplate(const tokenizer::ChatTemplate& inner, bool with_prompt) : inner_(inner), with_prompt_(with_prompt) {}
  tokenizer::RenderedChat render(std::span<const tokenizer::Message> messages,
                                 const tokenizer::RenderOptions& options) const override {
    tokenizer::RenderOptions prompting = options;
    prompting.add_generation_prompt = with_prompt_;
    return rendered_ = inner_.render(messages, prompting);
  }
  const std::string& source() const override { return inner_.source(); }
  const std::string& name() const override { return inner_.name(); }
  const tokenizer::RenderedChat& rendered() const { return rendered_; }

 private:
  const tokenizer::ChatTemplate& inner_;
  bool with_prompt_;
  mutable tokenizer::RenderedChat rendered_;
};

std::vector<Json> read_goldens(const std::filesystem::path& path) {
  std::vector<Json> examples;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) examples.push_back(Json::parse(line));
  return examples;
}

// Labels from ids and ranges of token positions; a token that straddles a span's edge is in them.
std::vector<std::int32_t> golden_labels(const Json& golden) {
  std::vector<std::int32_t> labels(golden["ids"].size(), -100);
  for (const Json& range : golden["supervised"]) {
    for (std::size_t i = range[0]; i < range[1]; ++i) labels[i] = golden["ids"][i];
  }
  return labels;
}

// The golden as the line of a dataset: everything that it says of its encoding holds.
void expect_golden(const Json& golden, const tokenizer::ChatTemplate& chat_template,
                   const tokenizer::Tokenizer& tokenizer) {
  Json example = {{"id", golden["id"]}, {"messages", golden["messages"]}};
  if (golden.contains("tools")) example["tools"] = golden["tools"];
  Json kwargs = golden.value("kwargs", Json::object());
  const GoldenTemplate rendering(chat_template, kwargs.value("add_generation_prompt", false));
  kwargs.erase("add_generation_prompt");
  example["chat_template_kwargs"] = kwargs;
  const JsonExample parsed = parse_json_example(example.dump());
  EXPECT_FALSE(parsed.problem);
  EXPECT_EQ(detect_layout(parsed.value, {}).type, DatasetType::kMessages);
  const Sample sample = parse_example(parsed.value, DatasetType::kMessages, {});
  const EncodedSample got = encode_sample(sample, {&tokenizer, &rendering, LossOn::kAuto, tokenizer.vocab_size()});
  ASSERT_FALSE(golden.contains("error")) << "must be refused: " << golden["error"];
  if (golden.contains("text")) {
    ASSERT_EQ(rendering.rendered().text, golden["text"]);
    ASSERT_EQ(Json(rendering.rendered().spans), golden["spans_utf8"]) << rendering.rendered().text;
  }
  ASSERT_EQ(Json(got.ids), golden["ids"]);
  ASSERT_EQ(got.labels, golden_labels(golden));
}

// As expect_golden(), or the refusal that the golden names. Returns 1 for a refusal.
int expect_golden_or_refusal(const Json& golden, const tokenizer::ChatTemplate& chat_template,
                             const tokenizer::Tokenizer& tokenizer) {
  SCOPED_TRACE(golden["id"]);
  try {
    expect_golden(golden, chat_template, tokenizer);
  } catch (const DataError& error) {
    EXPECT_TRUE(golden.contains("error")) << error.what();
    const bool is_role = error.message().find("an unknown role") != std::string::npos;
    EXPECT_TRUE(is_role || error.message().find(golden.value("error", "")) != std::string::npos) << error.what();
    return 1;
  }
  return 0;
}

class GoldenChatExamples : public testing::TestWithParam<GoldenFile> {
 protected:
  const tokenizer::Tokenizer& tokenizer_of(const std::filesystem::path& model) {
    if (GetParam().tokenizer_file == nullptr) return testing_support::loaded_tokenizer(model);
    std::filesystem::copy_file(model / GetParam().tokenizer_file, folder_ / "tokenizer.json");
    std::filesystem::copy_file(model / "tokenizer_config.json", folder_ / "tokenizer_config.json");
    own_ = tokenizer::Tokenizer::load(folder_.path());
    return *own_;
  }

 private:
  testing_support::TemporaryFolder folder_;
  std::unique_ptr<tokenizer::Tokenizer> own_;
};

TEST_P(GoldenChatExamples, TextSpansIdsAndLabelsAreEqual) {
  const GoldenFile& param = GetParam();
  LORA_TRAIN_REQUIRE_DATA(model, param.folder);
  LORA_TRAIN_REQUIRE_DATA(goldens, std::string("goldens/chat/") + param.name + ".jsonl");
  const tokenizer::Tokenizer& tokenizer = tokenizer_of(model);
  const auto chat_template =
      tokenizer::ChatTemplate::parse(read_file(model / param.template_file), param.template_file, model);
  std::map<std::string, Json> dialogues;
  if (param.dialogues != nullptr) {
    for (Json& example : read_goldens(goldens.parent_path() / param.dialogues)) dialogues[example["id"]] = example;
  }
  int examples = 0, errors = 0;
  for (Json& golden : read_goldens(goldens)) {
    ++examples;
    if (param.dialogues != nullptr) {
      const Json& dialogue = dialogues.at(golden["id"]);
      for (const char* field : {"messages", "tools", "kwargs"}) {
        if (dialogue.contains(field)) golden[field] = dialogue[field];
      }
    }
    errors += expect_golden_or_refusal(golden, *chat_template, tokenizer);
  }
  EXPECT_EQ(examples, param.examples);
  EXPECT_EQ(errors, param.errors);
}

std::string case_name(const testing::TestParamInfo<GoldenFile>& param) {
  std::string name = param.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Files, GoldenChatExamples,
    testing::Values(GoldenFile{"qwen2", "qwen2.5", "chat_template-qwen2-instruct.jinja", 150, 0},
                    GoldenFile{"qwen2.5", "qwen2.5", "chat_template.jinja", 300, 0},
                    GoldenFile{"qwen2.5-double-brace", "qwen2.5", "chat_template-double-brace.jinja", 150, 0},
                    GoldenFile{"qwen3", "qwen3", "chat_template.jinja", 300, 0},
                    GoldenFile{"qwen3-2025-04", "qwen3", "chat_template-2025-04.jinja", 150, 0},
                    GoldenFile{"qwen3-instruct-2507", "qwen3", "chat_template-instruct-2507.jinja", 150, 0},
                    GoldenFile{"qwen3-thinking-2507", "qwen3", "chat_template-thinking-2507.jinja", 300, 0},
                    GoldenFile{"mistral-v0.1", "mistral/v1", "chat_template.jinja", 300, 12},
                    GoldenFile{"mistral-v0.1-2023", "mistral/v1", "chat_template-2023.jinja", 150, 6},
                    GoldenFile{"mistral-v0.3", "mistral/v3", "chat_template.jinja", 300, 12},
                    GoldenFile{"mistral-v0.3-metaspace", "mistral/v3", "chat_template.jinja", 288, 0,
                               "tokenizer-metaspace.json", "mistral-v0.3.jsonl"}),
    case_name);

TEST(GoldenChatExamplesTable, NamesEveryFile) {
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/chat");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(goldens))
    files += entry.path().extension() == ".jsonl" ? 1 : 0;
  EXPECT_EQ(files, 11U);
}

bool is_plain_chat(const Json& golden) {
  if (golden.contains("tools")) return false;
  return std::all_of(golden["messages"].begin(), golden["messages"].end(), [](const Json& message) {
    const std::string role = message.at("role");
    return (role == "system" || role == "user" || role == "assistant") && !message.contains("tool_calls") &&
           message.contains("content") && message["content"].is_string();
  });
}

/// Our own templates, on the chats without tools of the published ones.
TEST(BuiltinTemplates, RenderPlainChatsAsThePublishedOnes) {
  for (const auto& [name, folder, golden_file] :
       std::vector<std::array<const char*, 3>>{{"qwen2.5", "qwen2.5", "qwen2.5"},
                                               {"qwen3", "qwen3", "qwen3"},
                                               {"mistral-v1", "mistral/v1", "mistral-v0.1"},
                                               {"mistral-v3", "mistral/v3", "mistral-v0.3"}}) {
    LORA_TRAIN_REQUIRE_DATA(model, folder);
    LORA_TRAIN_REQUIRE_DATA(goldens, std::string("goldens/chat/") + golden_file + ".jsonl");
    const auto& tokenizer = testing_support::loaded_tokenizer(model);
    const auto chat_template = tokenizer::load_chat_template(name, model);
    int rendered = 0;
    for (Json& golden : read_goldens(goldens)) {
      if (!is_plain_chat(golden)) continue;
      ++rendered;
      if (golden.contains("error")) {
        EXPECT_THROW(expect_golden(golden, *chat_template, tokenizer), DataError) << name << " " << golden["id"];
      } else {
        expect_golden(golden, *chat_template, tokenizer);
      }
    }
    EXPECT_GT(rendered, 150) << name;
  }
}

}  // namespace
}  // namespace lora_train::data
