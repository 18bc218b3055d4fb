#include <gtest/gtest.h>

#include "document_checks.h"
#include "lora_train/base/error.h"
#include "prepare_fixture.h"
#include "store_builder.h"

namespace lora_train::data {
namespace {

// One document of two tokens per number; equal numbers are equal examples.
DocumentStore examples(const char* file, const std::vector<std::int32_t>& numbers) {
  StoreBuilder builder;
  const auto index = builder.add_file(file);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::vector<std::int32_t> ids = {numbers[i], 1};
    builder.append(ids, ids, index, i + 1);
  }
  return builder.build();
}

TEST(Duplicates, LaterEqualExamplesAreCountedWithTheFirstPair) {
  Ledger ledger;
  count_duplicates(examples("t", {5, 9, 7, 9, 5, 9}), {}, ledger);
  ASSERT_EQ(ledger.entries.size(), 1U);
  EXPECT_EQ(ledger.entries[0].reason, LedgerReason::kDuplicate);
  EXPECT_EQ(ledger.entries[0].count, 3);
  EXPECT_EQ(ledger.entries[0].first_source, "t:4");
  EXPECT_EQ(ledger.entries[0].first_message, "like t:2");
}

TEST(Duplicates, TrainingExamplesOfEvaluationSetsAreCountedOnce) {
  const DocumentStore a = examples("a", {8, 3, 8}), b = examples("b", {3, 4});
  Ledger ledger;
  count_duplicates(examples("t", {1, 3, 2, 8}), {&a, &b}, ledger);
  ASSERT_EQ(ledger.entries.size(), 1U);
  EXPECT_EQ(ledger.entries[0].reason, LedgerReason::kInValidation);
  EXPECT_EQ(ledger.entries[0].count, 2);
  EXPECT_EQ(ledger.entries[0].first_source, "t:2");
  EXPECT_EQ(ledger.entries[0].first_message, "like a:2");
}

TEST(Duplicates, AreDroppedButForTheFirst) {
  Ledger ledger{.total = 6, .kept = 6};
  const DocumentStore left = without_duplicates(examples("t", {5, 9, 7, 9, 5, 9}), ledger);
  ASSERT_EQ(left.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(left.source(i), "t:" + std::to_string(i + 1));
  EXPECT_EQ(ledger.kept, 3);
  EXPECT_EQ(ledger.count(LedgerReason::kDroppedDuplicate), 3);
  EXPECT_EQ(ledger.entries[0].first_source, "t:4");
}

TEST(Duplicates, TrainingExamplesAreDroppedFromEvaluationSets) {
  Ledger ledger{.total = 4, .kept = 4};
  const DocumentStore left = without_training_examples(examples("e", {8, 3, 4, 3}), examples("t", {1, 3, 3}), ledger);
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left.source(0), "e:1");
  EXPECT_EQ(left.source(1), "e:3");
  EXPECT_EQ(ledger.kept, 2);
  EXPECT_EQ(ledger.count(LedgerReason::kDroppedInTraining), 2);
  EXPECT_EQ(ledger.entries[0].first_message, "like t:2");
}

TEST(Duplicates, DifferentExamplesAreNone) {
  const DocumentStore eval = examples("e", {4, 5});
  Ledger ledger;
  count_duplicates(examples("t", {1, 2, 3}), {&eval}, ledger);
  EXPECT_TRUE(ledger.entries.empty());
}

class DropDuplicates : public PrepareFixture {};

TEST_F(DropDuplicates, ComeOutBeforeTheSplitAndTrainingExamplesFromEvaluationData) {
  DataSection section;
  section.datasets = {dataset("train.jsonl", texts(20) + texts(20))};
  section.eval_datasets = {dataset("val.jsonl", texts(22))};
  section.max_drop_fraction = 0;  // what is asked for is no accident
  EXPECT_EQ(prepare(section).train.size(), 40U);
  const std::string as_it_was = prepare(section).fingerprint;
  section.drop_duplicates = true;
  const PreparedData data = prepare(section);
  EXPECT_EQ(data.train.size(), 20U);
  EXPECT_EQ(data.ledger.kept, 20);
  EXPECT_EQ(data.ledger.count(LedgerReason::kDuplicate), 0);
  EXPECT_NE(data.fingerprint, as_it_was);
  ASSERT_EQ(data.evals.size(), 1U);
  EXPECT_EQ(data.evals[0].store.size(), 2U);
  EXPECT_EQ(prepare(section, /*need_train=*/false).evals[0].store.size(), 2U) << "eval measures what train did";

  section.eval_datasets = {};
  section.val_set_size = 5;
  const PreparedData split = prepare(section);
  EXPECT_EQ(split.train.size(), 15U);
  EXPECT_EQ(split.ledger.count(LedgerReason::kInValidation), 0);

  section.val_set_size = 0;
  section.eval_datasets = {dataset("same.jsonl", texts(20))};
  try {
    prepare(section);
    FAIL() << "nothing is left to evaluate on";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("also in the training data, dropped (drop_duplicates: true)"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lora_train::data
