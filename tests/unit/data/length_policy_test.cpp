#include <gtest/gtest.h>

#include "document_checks.h"
#include "lora_train/base/error.h"
#include "store_builder.h"

namespace lora_train::data {
namespace {

// Examples of the given lengths; the last token of each is the only trained one, and in examples of 5 also the second.
DocumentStore examples(const std::vector<std::size_t>& lengths) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::int32_t> ids(lengths[i], 7), labels(lengths[i], -100);
    labels.back() = 7;
    if (lengths[i] == 5) {
      labels[1] = 7;
    }
    builder.append(ids, labels, file, i + 1);
  }
  return builder.build();
}

std::int64_t automatic(std::int64_t longest, std::int64_t p99, std::int64_t positions) {
  LengthStatistics lengths;
  lengths.longest = longest;
  lengths.percentile_99 = p99;
  return automatic_max_seq_len(lengths, positions);
}

TEST(LengthStatistics, CountsAndPercentiles) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 1; i <= 200; ++i) {
    lengths.push_back(i);
  }
  const DocumentStore store = examples(lengths);
  const LengthStatistics out = length_statistics({&store});
  EXPECT_EQ(out.num_examples, 200);
  EXPECT_EQ(out.num_tokens, 200 * 201 / 2);
  EXPECT_EQ(out.longest, 200);
  EXPECT_EQ(out.percentile_50, 100);
  EXPECT_EQ(out.percentile_99, 198);
}

TEST(MaxSeqLen, AutoRoundsUpAndIsCapped) {
  EXPECT_EQ(automatic(1, 1, 32768), 64);
  EXPECT_EQ(automatic(64, 60, 32768), 64);
  EXPECT_EQ(automatic(65, 60, 0), 128);
  EXPECT_EQ(automatic(1900, 1000, 1024), 1024);    // positions
  EXPECT_EQ(automatic(30000, 100, 32768), 2048);   // 4 x p99, at least 2048
  EXPECT_EQ(automatic(30000, 1000, 32768), 4000);  // 4 x p99
}

TEST(LengthChoices, EachTellsWhatItCosts) {
  // 98 examples of 32 tokens, one of 64 and one of 128.
  std::vector<std::size_t> lengths(98, 32);
  lengths.push_back(64);
  lengths.push_back(128);
  const DocumentStore store = examples(lengths);
  const auto lines = length_choices(store, length_statistics({&store}));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0],
            "  max_seq_len: 64: 1.00% of the examples are longer, with 1.92% of the tokens past the limit; 0.0% of "
            "slots empty with packing, 49.0% without");
  EXPECT_EQ(
      lines[1],
      "  max_seq_len: 128: 0.00% of the examples are longer, with 0.00% of the tokens past the limit; 0.0% of slots "
      "empty with packing, 74.0% without");
  const DocumentStore same = examples({10, 20, 30});
  EXPECT_TRUE(length_choices(same, length_statistics({&same})).empty());
}

TEST(LengthPolicy, ErrorTellsWhatEachOtherChoiceCosts) {
  Ledger ledger;
  try {
    apply_length_policy(examples({3, 4, 5, 9}), 4, Overlength::kError, ledger, "training data");
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_EQ(error.where(), "f:3");
    EXPECT_NE(error.message().find("2 of 4 examples"), std::string::npos);
    EXPECT_NE(error.message().find("2 examples with 14 tokens"), std::string::npos);
    EXPECT_NE(error.message().find("cuts 6 tokens"), std::string::npos);
    EXPECT_NE(error.message().find("; 1 of the examples"), std::string::npos);
    EXPECT_NE(error.message().find("max_seq_len: 64"), std::string::npos);
  }
}

TEST(LengthPolicy, AdviceToDropNamesTheShareThatItNeeds) {
  const auto refusal = [](double max_drop_fraction) -> std::string {
    Ledger ledger;
    ledger.total = 5;  // one was dropped before
    try {
      apply_length_policy(examples({3, 4, 5, 9}), 4, Overlength::kError, ledger, "x",
                          {.max_drop_fraction = max_drop_fraction});
    } catch (const DataError& error) {
      return error.message();
    }
    return "accepted";
  };
  EXPECT_NE(refusal(0.01).find("14 tokens; also needs max_drop_fraction: 0.6\n"), std::string::npos) << refusal(0.01);
  EXPECT_EQ(refusal(0.6).find("max_drop_fraction"), std::string::npos) << refusal(0.6);
}

TEST(LengthPolicy, AChoiceThatLeavesNoExampleSaysSo) {
  const auto refusal = [](const std::vector<std::size_t>& lengths) -> std::string {
    Ledger ledger;
    try {
      apply_length_policy(examples(lengths), 4, Overlength::kError, ledger, "x");
    } catch (const DataError& error) {
      return error.message();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({3, 6, 9}).find("leaving none"), std::string::npos) << refusal({3, 6, 9});
  EXPECT_NE(refusal({6, 9}).find("with 15 tokens, leaving none\n"), std::string::npos) << refusal({6, 9});
  EXPECT_NE(refusal({6, 9}).find("and dropped, leaving none\n"), std::string::npos) << refusal({6, 9});
  EXPECT_EQ(refusal({5, 9}).find("and dropped, leaving none\n"), std::string::npos) << refusal({5, 9});
}

TEST(LengthPolicy, ErrorProposesNoMoreThanTheModelsPositions) {
  const auto refusal = [](std::int64_t max_seq_len, std::int64_t positions) -> std::string {
    Ledger ledger;
    try {
      apply_length_policy(examples({3, 70, 100, 200}), max_seq_len, Overlength::kError, ledger, "x",
                          {.max_position_embeddings = positions});
    } catch (const DataError& error) {
      return error.message().substr(error.message().rfind('\n') + 1);
    }
    return "accepted";
  };
  const std::string limit =
      ": the model has 128 positions (max_position_embeddings), and the longest example has 200 tokens";
  EXPECT_EQ(refusal(64, 256), "  max_seq_len: 256  keeps everything");
  EXPECT_EQ(refusal(64, 200), "  max_seq_len: 200  keeps everything");
  EXPECT_EQ(refusal(64, 128), "  max_seq_len: 128  keeps all but 1 of them" + limit);
  EXPECT_EQ(refusal(128, 128), "  no larger max_seq_len" + limit);
}

TEST(LengthPolicy, ErrorPassesExamplesThatFitExactly) {
  Ledger ledger;
  EXPECT_EQ(apply_length_policy(examples({3, 4}), 4, Overlength::kError, ledger, "x").size(), 2U);
  EXPECT_EQ(ledger.kept, 2);
  EXPECT_TRUE(ledger.entries.empty());
}

TEST(LengthPolicy, DropLosesTheExamples) {
  Ledger ledger;
  const DocumentStore store = apply_length_policy(examples({3, 9, 4, 5}), 4, Overlength::kDrop, ledger, "x");
  ASSERT_EQ(store.size(), 2U);
  EXPECT_EQ(store.source(1), "f:3");
  ASSERT_EQ(ledger.entries.size(), 1U);
  EXPECT_EQ(ledger.entries[0].reason, LedgerReason::kOverlength);
  EXPECT_EQ(ledger.entries[0].count, 2);
  EXPECT_EQ(ledger.entries[0].first_source, "f:2");
}

TEST(LengthPolicy, TruncateKeepsTheHeadAndDropsWhatIsLeftUntrained) {
  Ledger ledger;
  const DocumentStore store = apply_length_policy(examples({3, 5, 9}), 4, Overlength::kTruncate, ledger, "x");
  ASSERT_EQ(store.size(), 2U);
  EXPECT_EQ(store.num_tokens(1), 4);
  EXPECT_EQ(store.labels(1)[1], 7);
  EXPECT_EQ(store.labels(1)[3], -100);  // the end token was cut and none is invented
  ASSERT_EQ(ledger.entries.size(), 2U);
  EXPECT_EQ(ledger.entries[0].reason, LedgerReason::kTruncated);
  EXPECT_EQ(ledger.entries[0].first_source, "f:2");
  EXPECT_EQ(ledger.entries[1].reason, LedgerReason::kFullyMasked);
  EXPECT_EQ(ledger.entries[1].first_source, "f:3");
  EXPECT_EQ(ledger.kept, 2);
}

TEST(LengthPolicy, ExamplesWithNothingToTrainAreDropped) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  const std::vector<std::int32_t> ids = {1, 2}, first_only = {1, -100};  // a label at position 0 trains nothing
  builder.append(ids, ids, file, 1);
  builder.append(ids, first_only, file, 2);
  DocumentStore store = builder.build();
  Ledger ledger;
  EXPECT_EQ(apply_length_policy(std::move(store), 64, Overlength::kError, ledger, "x").size(), 1U);
  ASSERT_EQ(ledger.entries.size(), 1U);
  EXPECT_EQ(ledger.entries[0].reason, LedgerReason::kFullyMasked);
}

}  // namespace
}  // namespace lora_train::data
