#include "lora_train/data/model_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

class ModelTokenizer : public ::testing::Test {
 protected:
  ModelTokenizer() {
    testing_support::write_text(folder_ / "tokenizer.json",
                                R"({"added_tokens": [{"id": 3, "content": "<x>"}],
                                    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
  }
  ModelSection section(std::vector<NewToken> tokens, TokenInit init = TokenInit::kMean) const {
    ModelSection section;
    section.add_tokens = std::move(tokens);
    section.token_init = init;
    return section;
  }
  std::string message(const ModelSection& section, const std::vector<std::int64_t>& trained_ids = {}) const {
    try {
      new_rows(section, *load_tokenizer(section, folder_.path(), trained_ids), trained_ids);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  testing_support::TemporaryFolder folder_;
};

TEST_F(ModelTokenizer, NewRowsHaveTheirIdsAndWhatTheyStartFrom) {
  const ModelSection described = section({{"<y>", "abb"}, {"<z>", "a"}}, TokenInit::kDescription);
  const auto rows = new_rows(described, *load_tokenizer(described, folder_.path()));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].id, 4);
  EXPECT_EQ(rows[0].from, (std::vector<std::int32_t>{2, 1}));
  EXPECT_EQ(rows[1].id, 5);
  EXPECT_EQ(rows[1].from, (std::vector<std::int32_t>{0}));
  EXPECT_TRUE(new_rows(section({}), *load_tokenizer(section({}), folder_.path())).empty());
}

TEST_F(ModelTokenizer, ADescriptionNeedsTokensThatHaveRows) {
  EXPECT_NE(message(section({{"<y>", "?"}}, TokenInit::kDescription)).find("init_text of \"<y>\" has no tokens"),
            std::string::npos);
  EXPECT_NE(
      message(section({{"<y>", "a<z>"}, {"<z>", "a"}}, TokenInit::kDescription)).find("contains <z>; that is also"),
      std::string::npos)
      << message(section({{"<y>", "a<z>"}, {"<z>", "a"}}, TokenInit::kDescription));
}

TEST_F(ModelTokenizer, TokensOfTheAdapterAreNotNewAgain) {
  EXPECT_NE(message(section({{"<x>", ""}})).find("with id 3"), std::string::npos);
  EXPECT_EQ(message(section({{"<x>", ""}}), {3}), "accepted");
  EXPECT_NE(message(section({{"<x>", ""}}), {5}).find("with id 3"), std::string::npos);
  const ModelSection more = section({{"<x>", ""}, {"<y>", ""}});
  const auto rows = new_rows(more, *load_tokenizer(more, folder_.path(), {3}), {3});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].id, 4);
}

TEST_F(ModelTokenizer, WarnsOfANormalizerThatHidesATokenBehindAWord) {
  testing_support::write_text(folder_ / "tokenizer.json",
                              R"({"normalizer": {"type": "Prepend", "prepend": "_"},
                                  "model": {"type": "BPE", "vocab": {"a": 0, "_": 1}, "merges": []}})");
  const auto said = [&](std::vector<NewToken> tokens) {
    ::testing::internal::CaptureStderr();
    load_tokenizer(section(std::move(tokens)), folder_.path());
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said({}), "");
  const std::string warned = said({{"<y>", ""}, {"<z>", ""}});
  EXPECT_NE(warned.find("finds \"<y>\" only after a space"), std::string::npos) << warned;
  EXPECT_EQ(std::count(warned.begin(), warned.end(), '\n'), 1) << "once";
}

TEST_F(ModelTokenizer, NewTokensNeedATokenizer) {
  const testing_support::TemporaryFolder empty;
  EXPECT_EQ(load_tokenizer(section({}), empty.path()), nullptr);
  EXPECT_THROW(load_tokenizer(section({{"<y>", ""}}), empty.path()), ConfigError);
}

}  // namespace
}  // namespace lora_train::data
