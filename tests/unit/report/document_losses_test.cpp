#include <gtest/gtest.h>

#include <fstream>

#include "lora_train/report/eval_files.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using Sets = std::vector<DocumentLosses>;

const Sets kBase = {{4, "val", "h1", {10, 24, 9, 30}, {10, 20, 8, 25}}, {4, "more", "h2", {7}, {6}}};

Sets with_losses(std::vector<double> first, std::vector<double> second) {
  Sets sets = kBase;
  sets[0].losses = std::move(first);
  sets[1].losses = std::move(second);
  return sets;
}

TEST(DocumentLosses, AreReadBackAsTheyWereWritten) {
  const testing_support::TemporaryFolder folder;
  Sets sets = kBase;
  sets[0].losses[0] = 0.1 + 0.2;
  write_document_losses(folder / "losses", sets);
  const Sets read = read_document_losses(folder / "losses");
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].losses, sets[0].losses);
  EXPECT_EQ(read[1].weights, sets[1].weights);
  EXPECT_EQ(read[0].name, "val");
  EXPECT_EQ(read[1].documents, "h2");
  EXPECT_EQ(read[0].step, 4);
}

TEST(DocumentLosses, OfAStrangersFileAreNone) {
  const testing_support::TemporaryFolder folder;
  EXPECT_TRUE(read_document_losses(folder / "missing").empty());
  for (const char* text :
       {"not json\n", "[1]\n", R"({"losses":[1],"weights":[1,2]})", R"({"losses":["a"],"weights":[1]})"}) {
    std::ofstream(folder / "losses") << text;
    EXPECT_TRUE(read_document_losses(folder / "losses").empty()) << text;
  }
  write_document_losses(folder / "good", kBase);
  std::filesystem::create_symlink(folder / "good", folder / "link");
  EXPECT_TRUE(read_document_losses(folder / "link").empty());
}

// numpy: d = [1, -0.5, 0.2, 2, 0.4]; w = [10, 20, 8, 25, 6]; m = d.sum() / w.sum(); r = d - m * w;
// scipy.stats.t.ppf(0.975, 4) * (5 / 4 * (r**2).sum()) ** 0.5 / w.sum()
TEST(LossDifference, IsTheRatioOfSumsWithItsIntervalOverDocuments) {
  const auto found = difference_of(kBase, with_losses({11, 23.5, 9.2, 32}, {7.4}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->num_documents, 5);
  EXPECT_NEAR(found->base_loss, 80.0 / 69, 1e-12);
  EXPECT_NEAR(found->mean, 3.1 / 69, 1e-12);
  EXPECT_NEAR(found->high - found->mean, 0.0788, 0.0788 * 0.01);
  EXPECT_NEAR(found->mean - found->low, found->high - found->mean, 1e-12);
}

TEST(LossDifference, NeedsTheSameDocuments) {
  Sets other = kBase;
  other[0].documents = "h3";
  EXPECT_FALSE(difference_of(kBase, other));
  EXPECT_FALSE(difference_of(kBase, {kBase[0]}));
  EXPECT_FALSE(difference_of({}, {}));
  const Sets few = {{1, "val", "h", {5, 6, 7, 8}, {5, 5, 5, 5}}};
  EXPECT_FALSE(difference_of(few, few)) << "four documents say nothing";
}

TEST(LossDifference, IsKeptWorseOrUnclearByItsInterval) {
  EXPECT_EQ(judge({.base_loss = 2, .mean = 0.01, .low = 0, .high = 0.02}), LossVerdict::kKept);
  EXPECT_EQ(judge({.base_loss = 2, .mean = 0.03, .low = 0.021, .high = 0.04}), LossVerdict::kWorse);
  EXPECT_EQ(judge({.base_loss = 2, .mean = 0.02, .low = 0.01, .high = 0.03}), LossVerdict::kUnclear);
  EXPECT_EQ(judge({.base_loss = 2, .mean = -1, .low = -1.5, .high = -0.5}), LossVerdict::kKept);
  EXPECT_EQ(in_words({.base_loss = 2, .mean = 0.01, .low = 0, .high = 0.02, .num_documents = 7}),
            "at most 1% higher: +0.0100 (95%: +0.0000 to +0.0200) over 7 documents");
}

}  // namespace
}  // namespace lora_train::report
