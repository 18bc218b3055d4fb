#include "lora_train/data/cache/ledger.h"

#include <gtest/gtest.h>

#include "store_builder.h"
#include "support/refusal.h"

namespace lora_train::data {
namespace {

Ledger example() {
  Ledger ledger;
  ledger.total = 100;
  ledger.kept = 97;
  ledger.add(LedgerReason::kTruncated, "a:5");
  ledger.add(LedgerReason::kFullyMasked, "a:7");
  ledger.add(LedgerReason::kBadRow, "a:2:9", "NaN");
  ledger.add(LedgerReason::kBadRow, "a:3:1", "x");
  return ledger;
}

TEST(Ledger, CountsByReasonAndKeepsTheFirst) {
  const Ledger ledger = example();
  EXPECT_EQ(show(ledger), (Entries{"bad_row 2 a:2:9, NaN", "truncated 1 a:5", "fully_masked 1 a:7"}));
  EXPECT_EQ(ledger.count(LedgerReason::kBadRow), 2);
  EXPECT_EQ(ledger.count(LedgerReason::kOverlength), 0);
  const auto lines = ledger.lines();
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "examples: 100 read, 97 kept");
  EXPECT_SAYS(lines[1], "2 (2.00%) malformed, dropped (on_bad_row: drop); first: a:2:9: NaN");
}

TEST(Ledger, CountsTurnsWithThoughtsLastAndOnlyIfThereAreAny) {
  Ledger ledger = example();
  ledger.thoughts = {1, 2, 0};
  Ledger other;
  other.thoughts = {0, 1000, 3};
  ledger.add(other);
  ASSERT_EQ(ledger.lines().size(), 5U);
  EXPECT_EQ(ledger.lines().back(), "  1,006 turns with thoughts: 1 kept, 1,002 dropped, 3 written empty");
}

TEST(Ledger, ShowsThePlacesOfTheFirstTenExamples) {
  Ledger ledger;
  for (int line = 1; line <= 3; ++line) ledger.add(LedgerReason::kBadRow, "a:" + std::to_string(line), "NaN");
  EXPECT_TRUE(Ledger::line(ledger.entries[0], 100).ends_with("first: a:1: NaN; also a:2, a:3"));
  Ledger second;
  for (int line = 4; line <= 12; ++line) second.add(LedgerReason::kBadRow, "b:" + std::to_string(line));
  ledger.add(second);
  EXPECT_EQ(ledger.entries[0].count, 12);
  const std::string text = Ledger::line(ledger.entries[0], 100);
  EXPECT_TRUE(text.ends_with("a:3, b:4, b:5, b:6, b:7, b:8, b:9, b:10 and 2 more")) << text;
}

std::string refusal(const Ledger& ledger, double fraction) {
  return testing_support::refusal<DataError>([&] { ledger.check_drop_fraction(fraction, "training data"); });
}

TEST(Ledger, FailsAboveTheDropFractionOnly) {
  EXPECT_EQ(refusal(Ledger(), 0), "accepted");
  EXPECT_EQ(refusal(example(), 0.03), "accepted");
  const std::string said = refusal(example(), 0.029);
  EXPECT_EQ(said.find("training data would lose 3 of 100"), 0U) << said;
  EXPECT_SAYS(said, "first: a:2:9");
  EXPECT_SAYS(said, "max_drop_fraction: 0.029");
  EXPECT_FALSE(testing_support::says(said, "tail cut")) << "such examples are not lost";
}

TEST(Ledger, ProposesLongerRowsOnlyIfExamplesAreTooLong) {
  const auto advice = [](LedgerReason reason, const std::string& message) {
    Ledger ledger;
    ledger.total = 4;
    ledger.add(reason, "a:1", message);
    const std::string said = refusal(ledger, 0.1);
    return said.substr(said.rfind('\n') + 1);
  };
  const std::string longer = "Fix the examples, raise max_seq_len, or raise max_drop_fraction (0 to 1).";
  EXPECT_EQ(advice(LedgerReason::kOverlength, ""), longer);
  EXPECT_EQ(advice(LedgerReason::kFullyMasked, "after its tail was cut at max_seq_len"), longer);
  EXPECT_EQ(advice(LedgerReason::kBadRow, "NaN"), "Fix the examples, or raise max_drop_fraction (0 to 1).");
}

}  // namespace
}  // namespace lora_train::data
