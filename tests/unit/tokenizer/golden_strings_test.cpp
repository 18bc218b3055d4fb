// Ids of real tokenizers on thousands of strings, equal to Hugging Face's and SentencePiece's.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lora_train/tokenizer/tokenizer.h"
#include "support/loaded_tokenizer.h"
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

/// What is compared with which values.
struct GoldenCase {
  const char *name, *model, *goldens;
  const char* key = "ids";
  const char* only_file = nullptr;  // of the model, under this name: nothing but its own rules apply
  TokenizerOptions options = {};
};

void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.name; }

class GoldenStrings : public testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenStrings, HaveTheReferencesIds) {
  const GoldenCase& param = GetParam();
  LORA_TRAIN_REQUIRE_DATA(model, param.model);
  LORA_TRAIN_REQUIRE_DATA(goldens, std::string("goldens/strings/") + param.goldens);
  if (param.only_file == nullptr && param.options.special_tokens_in_text) {
    return expect_golden_ids(testing_support::loaded_tokenizer(model, param.options.file), goldens, param.key);
  }
  const testing_support::TemporaryFolder folder;
  if (param.only_file != nullptr) std::filesystem::copy_file(model, folder / param.only_file);
  const auto tokenizer = Tokenizer::load(param.only_file != nullptr ? folder.path() : model, param.options);
  expect_golden_ids(*tokenizer, goldens, param.key);
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenStrings,
    testing::Values(
        GoldenCase{"Qwen25", "qwen2.5", "qwen2.5.jsonl"}, GoldenCase{"Qwen3", "qwen3", "qwen3.jsonl"},
        GoldenCase{"MistralV1Json", "mistral/v1", "mistral-v1.jsonl"},
        GoldenCase{"MistralV3Json", "mistral/v3", "mistral-v3.jsonl"},
        GoldenCase{"MistralV3Metaspace", "mistral/v3/tokenizer-metaspace.json", "mistral-v3-metaspace.jsonl", "ids",
                   "tokenizer.json"},
        GoldenCase{"MistralV1SentencePiece", "mistral/v1/tokenizer.model", "mistral-v1.jsonl", "sp_ids",
                   "tokenizer.model"},
        GoldenCase{"MistralV3SentencePiece", "mistral/v3/tokenizer.model", "mistral-v3.jsonl", "sp_ids",
                   "tokenizer.model"},
        // With tokenizer_config.json, a model file finds the added tokens in the text, as the legacy tokenizer.json does.
        GoldenCase{"MistralV3SentencePieceWithAddedTokens",
                   "mistral/v3",
                   "mistral-v3.jsonl",
                   "ids",
                   nullptr,
                   {.file = TokenizerFile::kSentencePieceModel}},
        // Spelled-out special tokens as ordinary text: what SentencePiece makes of them.
        GoldenCase{"MistralV1SpecialTokensAsText",
                   "mistral/v1",
                   "mistral-v1.jsonl",
                   "sp_ids",
                   nullptr,
                   {.special_tokens_in_text = false}}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace lora_train::tokenizer
