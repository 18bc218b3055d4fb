// Ids of real tokenizers on thousands of strings, equal to Hugging Face's and SentencePiece's.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lora_train/tokenizer/tokenizer.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

// What is promised of the offsets of any encoding.
void expect_sound_offsets(const std::string& text, const Encoding& encoding) {
  ASSERT_EQ(encoding.offsets.size(), encoding.ids.size()) << text;
  std::uint32_t begin = 0, covered = 0;
  for (const auto& [first, last] : encoding.offsets) {
    ASSERT_LE(begin, first) << text;
    ASSERT_LT(first, last) << text;
    ASSERT_LE(first, covered) << "a gap in: " << text;
    begin = first;
    covered = std::max(covered, last);
  }
  ASSERT_EQ(covered, text.size()) << text;
}

// Compares every row; `key` falls back to "ids".
void expect_golden_ids(const Tokenizer& tokenizer, const std::filesystem::path& goldens, const std::string& key) {
  std::ifstream file(goldens);
  int rows = 0, wrong = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const auto row = nlohmann::json::parse(line);
    const auto text = row["text"].get<std::string>();
    const auto want = (row.contains(key) ? row[key] : row["ids"]).get<Ids>();
    const Encoding got = tokenizer.encode(text, true);
    if (got.ids != want && ++wrong <= 5) {
      ADD_FAILURE() << row["cls"] << " " << row["text"] << "\n want " << nlohmann::json(want) << "\n got  "
                    << nlohmann::json(got.ids);
    }
    expect_sound_offsets(text, got);
    EXPECT_EQ(tokenizer.encode(text, false).ids, got.ids);
  }
  EXPECT_GE(rows, 1500);
  EXPECT_EQ(wrong, 0) << "of " << rows;
}

void expect_golden_strings(const std::filesystem::path& folder, const std::filesystem::path& goldens) {
  expect_golden_ids(*Tokenizer::load(folder), goldens, "ids");
}

TEST(GoldenStrings, Qwen25) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen2.5");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/qwen2.5.jsonl");
  expect_golden_strings(folder, goldens);
}

TEST(GoldenStrings, Qwen3) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen3");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/qwen3.jsonl");
  expect_golden_strings(folder, goldens);
}

TEST(GoldenStrings, MistralV1Json) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v1");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v1.jsonl");
  expect_golden_strings(folder, goldens);
}

TEST(GoldenStrings, MistralV3Json) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v3");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v3.jsonl");
  expect_golden_strings(folder, goldens);
}

TEST(GoldenStrings, MistralV3Metaspace) {
  LORA_TRAIN_REQUIRE_DATA(file, "mistral/v3/tokenizer-metaspace.json");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v3-metaspace.jsonl");
  const testing_support::TemporaryFolder folder;
  std::filesystem::copy_file(file, folder / "tokenizer.json");
  expect_golden_strings(folder.path(), goldens);
}

// Only the model file, so that nothing but SentencePiece's own rules apply.
void expect_sentencepiece_ids(const std::filesystem::path& model, const std::filesystem::path& goldens) {
  const testing_support::TemporaryFolder folder;
  std::filesystem::copy_file(model, folder / "tokenizer.model");
  expect_golden_ids(*Tokenizer::load(folder.path()), goldens, "sp_ids");
}

TEST(GoldenStrings, MistralV1SentencePiece) {
  LORA_TRAIN_REQUIRE_DATA(model, "mistral/v1/tokenizer.model");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v1.jsonl");
  expect_sentencepiece_ids(model, goldens);
}

TEST(GoldenStrings, MistralV3SentencePiece) {
  LORA_TRAIN_REQUIRE_DATA(model, "mistral/v3/tokenizer.model");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v3.jsonl");
  expect_sentencepiece_ids(model, goldens);
}

// With its tokenizer_config.json, a model file finds the added tokens in the text: the ids of the legacy
// tokenizer.json.
TEST(GoldenStrings, MistralV3SentencePieceWithAddedTokens) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v3");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v3.jsonl");
  expect_golden_ids(*Tokenizer::load(folder, {.file = TokenizerFile::kSentencePieceModel}), goldens, "ids");
}

// Spelled-out special tokens as ordinary text: what SentencePiece makes of them.
TEST(GoldenStrings, MistralV1SpecialTokensAsText) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v1");
  LORA_TRAIN_REQUIRE_DATA(goldens, "goldens/strings/mistral-v1.jsonl");
  expect_golden_ids(*Tokenizer::load(folder, {.special_tokens_in_text = false}), goldens, "sp_ids");
}

}  // namespace
}  // namespace lora_train::tokenizer
