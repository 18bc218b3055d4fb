#include "lora_train/data/model_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/refusal.h"
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
    return testing_support::refusal<ConfigError>(
        [&] { new_rows(section, *load_tokenizer(section, folder_.path(), trained_ids), trained_ids); });
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

TEST_F(ModelTokenizer, NewTokensNeedATokenizerAndADescriptionTokensThatHaveRows) {
  const testing_support::TemporaryFolder empty;
  EXPECT_EQ(load_tokenizer(section({}), empty.path()), nullptr);
  EXPECT_THROW(load_tokenizer(section({{"<y>", ""}}), empty.path()), ConfigError);
  EXPECT_SAYS(message(section({{"<y>", "?"}}, TokenInit::kDescription)), "init_text of \"<y>\" has no tokens");
  EXPECT_SAYS(message(section({{"<y>", "a<z>"}, {"<z>", "a"}}, TokenInit::kDescription)), "contains <z>; that is also");
}
TEST_F(ModelTokenizer, TokensOfTheAdapterAreNotNewAgain) {
  EXPECT_SAYS(message(section({{"<x>", ""}})), "with id 3");
  EXPECT_EQ(message(section({{"<x>", ""}}), {3}), "accepted");
  EXPECT_SAYS(message(section({{"<x>", ""}}), {5}), "with id 3");
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
  EXPECT_SAYS(warned, "finds \"<y>\" only after a space");
  EXPECT_EQ(std::count(warned.begin(), warned.end(), '\n'), 1) << "once";
}

}  // namespace
}  // namespace lora_train::data
