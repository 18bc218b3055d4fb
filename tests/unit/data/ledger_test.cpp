#include "lora_train/data/cache/ledger.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"

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
  ASSERT_EQ(ledger.entries.size(), 3U);
  EXPECT_STREQ(name_of(ledger.entries[0].reason), "bad_row");
  EXPECT_EQ(ledger.entries[0].count, 2);
  EXPECT_EQ(ledger.entries[0].first_source, "a:2:9");
  EXPECT_EQ(ledger.entries[0].first_message, "NaN");
  EXPECT_EQ(ledger.count(LedgerReason::kBadRow), 2);
  EXPECT_EQ(ledger.count(LedgerReason::kOverlength), 0);
  EXPECT_STREQ(name_of(ledger.entries[1].reason), "truncated");
  EXPECT_STREQ(name_of(ledger.entries[2].reason), "fully_masked");
}

TEST(Ledger, PrintsALineForEachReason) {
  const auto lines = example().lines();
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "examples: 100 read, 97 kept");
  EXPECT_NE(lines[1].find("2 (2.00%) malformed, dropped (on_bad_row: drop); first: a:2:9: NaN"), std::string::npos);
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

TEST(Ledger, FailsAboveTheDropFractionOnly) {
  const Ledger ledger = example();
  EXPECT_NO_THROW(ledger.check_drop_fraction(0.03, "training data"));
  try {
    ledger.check_drop_fraction(0.029, "training data");
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_EQ(error.where(), "");
    EXPECT_NE(error.message().find("first: a:2:9"), std::string::npos);
    EXPECT_NE(error.message().find("3 of 100"), std::string::npos);
    EXPECT_NE(error.message().find("max_drop_fraction: 0.029"), std::string::npos);
    EXPECT_EQ(error.message().find("tail cut"), std::string::npos);  // such examples are not lost
  }
}

TEST(Ledger, ProposesLongerRowsOnlyIfExamplesAreTooLong) {
  const auto advice = [](LedgerReason reason, const std::string& message) {
    Ledger ledger;
    ledger.total = 4;
    ledger.add(reason, "a:1", message);
    try {
      ledger.check_drop_fraction(0.1, "training data");
    } catch (const DataError& error) {
      return error.message().substr(error.message().rfind('\n') + 1);
    }
    return std::string("accepted");
  };
  const std::string longer = "Fix the examples, raise max_seq_len, or raise max_drop_fraction (0 to 1).";
  EXPECT_EQ(advice(LedgerReason::kOverlength, ""), longer);
  EXPECT_EQ(advice(LedgerReason::kFullyMasked, "after its tail was cut at max_seq_len"), longer);
  EXPECT_EQ(advice(LedgerReason::kBadRow, "NaN"), "Fix the examples, or raise max_drop_fraction (0 to 1).");
}

TEST(Ledger, EmptyPasses) { EXPECT_NO_THROW(Ledger().check_drop_fraction(0, "x")); }

}  // namespace
}  // namespace lora_train::data
