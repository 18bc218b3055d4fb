// Real chat templates on hundreds of dialogues: text, spans, ids and trained tokens equal to transformers'.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::tokenizer {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct ChatCase {
  const char* name;    // golden file
  const char* folder;  // tokenizer
  const char* template_file;
  int rows, errors;
};

void PrintTo(const ChatCase& c, std::ostream* out) { *out << c.name; }

std::vector<Message> messages_of(const OrderedJson& row) {
  std::vector<Message> messages;
  for (const OrderedJson& json : row.at("messages")) {
    messages.push_back({json.at("role"), json.value("content", ""), json.dump()});
  }
  return messages;
}

RenderOptions options_of(const OrderedJson& row) {
  RenderOptions options;
  if (row.contains("tools")) options.tools_json = row["tools"].dump();
  if (!row.contains("kwargs")) return options;
  OrderedJson kwargs = row["kwargs"];
  options.add_generation_prompt = kwargs.value("add_generation_prompt", false);
  kwargs.erase("add_generation_prompt");
  if (!kwargs.empty()) options.kwargs_json = kwargs.dump();
  return options;
}

// Token positions as half-open ranges.
OrderedJson ranges_of(const std::vector<std::uint8_t>& trained) {
  OrderedJson ranges = OrderedJson::array();
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (trained[i] == 0) continue;
    if (i == 0 || trained[i - 1] == 0) ranges.push_back({i, i});
    ranges.back()[1] = i + 1;
  }
  return ranges;
}

class GoldenChats : public ::testing::TestWithParam<ChatCase> {};

void expect_golden_row(const OrderedJson& row, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const RenderedChat got = chat_template.render(messages_of(row), options_of(row));
  ASSERT_EQ(got.text, row["text"].get<std::string>()) << row["id"];
  EXPECT_EQ(OrderedJson(got.spans), row["spans_utf8"]) << row["id"] << "\n" << got.text;
  const Encoding encoding = tokenizer.encode(got.text, true);
  EXPECT_EQ(OrderedJson(encoding.ids), row["ids"]) << row["id"];
  EXPECT_EQ(ranges_of(trained_tokens(encoding.offsets, got.spans)), row["supervised"]) << row["id"];
}

TEST_P(GoldenChats, TextSpansIdsAndTrainedTokensAreEqual) {
  const ChatCase& param = GetParam();
  LORA_TRAIN_REQUIRE_DATA(folder, param.folder);
  LORA_TRAIN_REQUIRE_DATA(template_file, param.template_file);
  LORA_TRAIN_REQUIRE_DATA(goldens, std::string("goldens/chat/") + param.name + ".jsonl");
  const auto tokenizer = Tokenizer::load(folder);
  const auto chat_template = ChatTemplate::parse(read_file(template_file), template_file.filename(), folder);
  std::ifstream file(goldens);
  int rows = 0, errors = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const OrderedJson row = OrderedJson::parse(line);
    if (!row.contains("error")) {
      expect_golden_row(row, *chat_template, *tokenizer);
      continue;
    }
    ++errors;
    try {
      chat_template->render(messages_of(row), options_of(row));
      ADD_FAILURE() << row["id"] << " must be refused: " << row["error"];
    } catch (const DataError& error) {
      EXPECT_NE(error.message().find(row["error"].get<std::string>()), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(rows, param.rows);
  EXPECT_EQ(errors, param.errors);
}

bool is_plain_chat(const OrderedJson& row) {
  if (row.contains("tools")) return false;
  return std::all_of(row["messages"].begin(), row["messages"].end(), [](const OrderedJson& message) {
    const std::string role = message.at("role");
    return (role == "system" || role == "user" || role == "assistant") && !message.contains("tool_calls") &&
           message.contains("content") && message["content"].is_string();
  });
}

struct BuiltinCase {
  const char *name, *folder, *goldens;
};

/// Our own templates, on the chats without tools of the published ones.
TEST(BuiltinTemplates, RenderPlainChatsAsThePublishedOnes) {
  for (const auto& [name, tokenizer_folder, golden_file] :
       {BuiltinCase{"qwen2.5", "qwen2.5", "qwen2.5"}, BuiltinCase{"qwen3", "qwen3", "qwen3"},
        BuiltinCase{"mistral-v1", "mistral/v1", "mistral-v0.1"},
        BuiltinCase{"mistral-v3", "mistral/v3", "mistral-v0.3"}}) {
    LORA_TRAIN_REQUIRE_DATA(folder, tokenizer_folder);
    LORA_TRAIN_REQUIRE_DATA(goldens, std::string("goldens/chat/") + golden_file + ".jsonl");
    const auto tokenizer = Tokenizer::load(folder);
    const auto chat_template = load_chat_template(name, folder);
    std::ifstream file(goldens);
    int rows = 0;
    for (std::string line; std::getline(file, line);) {
      const OrderedJson row = OrderedJson::parse(line);
      if (!is_plain_chat(row)) continue;
      ++rows;
      if (row.contains("error")) {
        EXPECT_THROW(chat_template->render(messages_of(row), options_of(row)), DataError) << name << " " << row["id"];
      } else {
        expect_golden_row(row, *chat_template, *tokenizer);
      }
    }
    EXPECT_GT(rows, 150) << name;
  }
}

std::string case_name(const ::testing::TestParamInfo<ChatCase>& param) {
  std::string name = param.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Templates, GoldenChats,
    ::testing::Values(ChatCase{"qwen2", "qwen2.5", "qwen2.5/chat_template-qwen2-instruct.jinja", 150, 0},
                      ChatCase{"qwen2.5", "qwen2.5", "qwen2.5/chat_template.jinja", 300, 0},
                      ChatCase{"qwen2.5-double-brace", "qwen2.5", "qwen2.5/chat_template-double-brace.jinja", 150, 0},
                      ChatCase{"qwen3", "qwen3", "qwen3/chat_template.jinja", 300, 0},
                      ChatCase{"qwen3-2025-04", "qwen3", "qwen3/chat_template-2025-04.jinja", 150, 0},
                      ChatCase{"qwen3-instruct-2507", "qwen3", "qwen3/chat_template-instruct-2507.jinja", 150, 0},
                      ChatCase{"qwen3-thinking-2507", "qwen3", "qwen3/chat_template-thinking-2507.jinja", 300, 0},
                      ChatCase{"mistral-v0.1", "mistral/v1", "mistral/v1/chat_template.jinja", 300, 12},
                      ChatCase{"mistral-v0.1-2023", "mistral/v1", "mistral/v1/chat_template-2023.jinja", 150, 6},
                      ChatCase{"mistral-v0.3", "mistral/v3", "mistral/v3/chat_template.jinja", 300, 12}),
    case_name);

}  // namespace
}  // namespace lora_train::tokenizer
