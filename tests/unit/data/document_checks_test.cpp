#include "document_checks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "byte_tokenizer.h"
#include "prepare_fixture.h"
#include "store_builder.h"
#include "support/refusal.h"

namespace lora_train::data {
namespace {

using testing_support::says;

// Examples of the given lengths; the last token of each is the only trained one, and in examples of 5 also the second.
DocumentStore examples(const std::vector<std::size_t>& lengths) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::int32_t> ids(lengths[i], 7), labels(lengths[i], -100);
    labels.back() = 7;
    if (lengths[i] == 5) labels[1] = 7;
    builder.append(ids, labels, file, i + 1);
  }
  return builder.build();
}

std::string refusal(const std::vector<std::size_t>& lengths, std::int64_t max_seq_len = 4,
                    const LengthLimits& advice = {}, Ledger ledger = {}) {
  return testing_support::refusal<DataError>(
      [&] { apply_length_policy(examples(lengths), max_seq_len, Overlength::kError, ledger, "x", advice); });
}

TEST(LengthStatistics, CountsAndPercentiles) {
  std::vector<std::size_t> lengths(200);
  std::iota(lengths.begin(), lengths.end(), 1U);
  const DocumentStore store = examples(lengths);
  const LengthStatistics out = length_statistics({&store});
  EXPECT_EQ(out.num_examples, 200);
  EXPECT_EQ(out.num_tokens, 200 * 201 / 2);
  EXPECT_EQ(out.longest, 200);
  EXPECT_EQ(out.percentile_50, 100);
  EXPECT_EQ(out.percentile_99, 198);
}

TEST(MaxSeqLen, AutoRoundsUpAndIsCapped) {
  const auto automatic = [](std::int64_t longest, std::int64_t p99, std::int64_t positions) {
    LengthStatistics lengths;
    lengths.longest = longest;
    lengths.percentile_99 = p99;
    return automatic_max_seq_len(lengths, positions);
  };
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
  const std::string said = refusal({3, 4, 5, 9});
  EXPECT_EQ(said.find("f:3: 2 of 4 examples"), 0U) << said;
  for (const char* part : {"2 examples with 14 tokens", "cuts 6 tokens", "; 1 of the examples", "max_seq_len: 64"}) {
    EXPECT_SAYS(said, part);
  }
}

TEST(LengthPolicy, AdviceToDropNamesTheShareThatItNeeds) {
  Ledger ledger;
  ledger.total = 5;  // one was dropped before
  EXPECT_SAYS(refusal({3, 4, 5, 9}, 4, {.max_drop_fraction = 0.01}, ledger),
              "14 tokens; also needs max_drop_fraction: 0.6\n");
  EXPECT_FALSE(says(refusal({3, 4, 5, 9}, 4, {.max_drop_fraction = 0.6}, ledger), "max_drop_fraction"));
}

TEST(LengthPolicy, AChoiceThatLeavesNoExampleSaysSo) {
  EXPECT_FALSE(says(refusal({3, 6, 9}), "leaving none"));
  EXPECT_SAYS(refusal({6, 9}), "with 15 tokens, leaving none\n");
  EXPECT_SAYS(refusal({6, 9}), "and dropped, leaving none\n");
  EXPECT_FALSE(says(refusal({5, 9}), "and dropped, leaving none\n"));
}

TEST(LengthPolicy, ErrorProposesNoMoreThanTheModelsPositions) {
  const auto last_line = [](std::int64_t max_seq_len, std::int64_t positions) {
    const std::string said = refusal({3, 70, 100, 200}, max_seq_len, {.max_position_embeddings = positions});
    return said.substr(said.rfind('\n') + 1);
  };
  const std::string limit =
      ": the model has 128 positions (max_position_embeddings), and the longest example has 200 tokens";
  EXPECT_EQ(last_line(64, 256), "  max_seq_len: 256  keeps everything");
  EXPECT_EQ(last_line(64, 200), "  max_seq_len: 200  keeps everything");
  EXPECT_EQ(last_line(64, 128), "  max_seq_len: 128  keeps all but 1 of them" + limit);
  EXPECT_EQ(last_line(128, 128), "  no larger max_seq_len" + limit);
}

using Sources = std::vector<std::string>;

TEST(LengthPolicy, SaysWhatIsLost) {
  const auto expect = [](DocumentStore store, Overlength policy, const Sources& left, const Entries& entries) {
    Ledger ledger;
    const DocumentStore got = apply_length_policy(std::move(store), 4, policy, ledger, "x");
    EXPECT_EQ(sources(got), left);
    EXPECT_EQ(show(ledger), entries);
    EXPECT_EQ(ledger.kept, std::ssize(left));
  };
  expect(examples({3, 4}), Overlength::kError, {"f:1", "f:2"}, {});
  expect(examples({3, 9, 4, 5}), Overlength::kDrop, {"f:1", "f:3"}, {"overlength 2 f:2, 9 tokens"});
  expect(examples({3, 5, 9}), Overlength::kTruncate, {"f:1", "f:2"},
         {"truncated 1 f:2, 5 tokens", "fully_masked 1 f:3, after its tail was cut at max_seq_len"});
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  const std::vector<std::int32_t> ids = {1, 2}, first_only = {1, -100};  // a label at position 0 trains nothing
  builder.append(ids, ids, file, 1);
  builder.append(ids, first_only, file, 2);
  expect(builder.build(), Overlength::kError, {"f:1"}, {"fully_masked 1 f:2"});
}

TEST(LengthPolicy, TruncateKeepsTheHead) {
  Ledger ledger;
  const DocumentStore store = apply_length_policy(examples({5}), 4, Overlength::kTruncate, ledger, "x");
  EXPECT_EQ(store.num_tokens(0), 4);
  EXPECT_EQ(store.labels(0)[1], 7);
  EXPECT_EQ(store.labels(0)[3], -100);  // the end token was cut and none is invented
}

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

TEST(Duplicates, AreCountedWithTheFirstPair) {
  const DocumentStore a = examples("a", {8, 3, 8}), b = examples("b", {3, 4}), other = examples("e", {4, 5});
  const auto counted = [](const std::vector<std::int32_t>& numbers, const std::vector<const DocumentStore*>& evals) {
    Ledger ledger;
    count_duplicates(examples("t", numbers), evals, ledger);
    return show(ledger);
  };
  EXPECT_EQ(counted({5, 9, 7, 9, 5, 9}, {}), Entries{"duplicate 3 t:4, like t:2"});
  EXPECT_EQ(counted({1, 3, 2, 8}, {&a, &b}), Entries{"in_validation 2 t:2, like a:2"}) << "once, of two sets";
  EXPECT_EQ(counted({1, 2, 3}, {&other}), Entries{});
}

TEST(Duplicates, AreDroppedButForTheFirst) {
  Ledger ledger{.total = 6, .kept = 6};
  EXPECT_EQ(sources(without_duplicates(examples("t", {5, 9, 7, 9, 5, 9}), ledger)), (Sources{"t:1", "t:2", "t:3"}));
  EXPECT_EQ(ledger.kept, 3);
  EXPECT_EQ(show(ledger), Entries{"dropped_duplicate 3 t:4, like t:2"});
}

TEST(Duplicates, TrainingExamplesAreDroppedFromEvaluationSets) {
  Ledger ledger{.total = 4, .kept = 4};
  EXPECT_EQ(sources(without_training_examples(examples("e", {8, 3, 4, 3}), examples("t", {1, 3, 3}), ledger)),
            (Sources{"e:1", "e:3"}));
  EXPECT_EQ(ledger.kept, 2);
  EXPECT_EQ(show(ledger), Entries{"dropped_in_training 2 e:2, like t:2"});
}

class DropDuplicates : public PrepareFixture {};

TEST_F(DropDuplicates, ComeOutBeforeTheSplitAndTrainingExamplesFromEvaluationData) {
  DataSection section = training_on(texts(20) + texts(20), "train.jsonl");
  section.eval_datasets = {dataset("val.jsonl", texts(22))};
  section.max_drop_fraction = 0;  // what is asked for is no accident
  const PreparedData all = prepare(section);
  EXPECT_EQ(all.train.size(), 40U);
  EXPECT_EQ(all.ledger.kept, 40);
  EXPECT_EQ(all.ledger.count(LedgerReason::kDuplicate), 20);
  EXPECT_EQ(all.ledger.count(LedgerReason::kInValidation), 40);
  section.drop_duplicates = true;
  const PreparedData data = prepare(section);
  EXPECT_EQ(data.train.size(), 20U);
  EXPECT_EQ(data.ledger.kept, 20);
  EXPECT_EQ(data.ledger.count(LedgerReason::kDuplicate), 0);
  EXPECT_NE(data.fingerprint, all.fingerprint);
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
  EXPECT_SAYS(testing_support::refusal<DataError>([&] { prepare(section); }),
              "also in the training data, dropped (drop_duplicates: true)");
}

constexpr std::int32_t kFullStop = '.';  // what PlainTemplate writes behind a turn

// Ends with EOS, or where `generation_eos` says so.
class StoppingTokenizer : public ByteTokenizer {
 public:
  StoppingTokenizer(std::optional<std::int32_t> eos, std::vector<std::int32_t> generation_eos) {
    eos_id_ = eos;
    generation_eos_ids_ = std::move(generation_eos);
  }
  std::string id_to_token(std::int32_t id) const override { return "<" + std::to_string(id) + ">"; }
};

DocumentStore store_that_trains(std::int32_t id) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  builder.append(std::vector<std::int32_t>{id, 5, id}, std::vector<std::int32_t>{id, 5, id == kFullStop ? id : -100},
                 file, 1);
  return builder.build();
}

std::string warnings(const StoppingTokenizer& tokenizer, const DocumentStore& store) {
  std::string out;
  for (const std::string& warning : audit_stop_token(tokenizer, PlainTemplate(), store).warnings) out += warning + "\n";
  return out;
}

TEST(StopTokenAudit, WarnsUnlessTheEndIsKnownAndTrained) {
  const DocumentStore store = store_that_trains(kFullStop);
  EXPECT_EQ(warnings({kFullStop, {}}, store), "");
  EXPECT_EQ(warnings({257, {257, kFullStop}}, store), "");
  EXPECT_EQ(audit_stop_token(StoppingTokenizer(kFullStop, {}), PlainTemplate(), store).id, kFullStop);
  EXPECT_SAYS(warnings({257, {}}, store), "<46> (id 46), but the tokenizer names <257> (id 257) as the end");
  EXPECT_SAYS(warnings({kFullStop, {3}}, store), "generation_config.json names <3> (id 3)");
  EXPECT_SAYS(warnings({std::nullopt, {}}, store), "names no end token");
  EXPECT_SAYS(warnings({kFullStop, {}}, store_that_trains(7)), "is not trained in any example");
  EXPECT_EQ(warnings({kFullStop, {}}, DocumentStore()), "");  // evaluation alone: nothing is trained
}

// Writes `end` behind an answer.
class EndingTemplate : public PlainTemplate {
 public:
  explicit EndingTemplate(std::string end) : end_(std::move(end)) {}
  tokenizer::RenderedChat render(std::span<const tokenizer::Message> messages,
                                 const tokenizer::RenderOptions&) const override {
    tokenizer::RenderedChat out;
    out.text = messages.back().content + end_;
    out.spans = {{0, static_cast<std::uint32_t>(out.text.size())}};
    out.span_message = {static_cast<int>(messages.size()) - 1};
    return out;
  }

 private:
  std::string end_;
};

TEST(StopTokenAudit, WarnsWhenATemplateEndsNoTurnWithAToken) {
  for (const auto& [end, message] : {std::pair{"<end>", "\"<end>\", which this tokenizer cuts into 5 ordinary tokens"},
                                     {"", "no token that ends an answer"}}) {
    const StopTokenAudit audit =
        audit_stop_token(StoppingTokenizer(257, {}), EndingTemplate(end), store_that_trains(kFullStop));
    EXPECT_FALSE(audit.id);
    ASSERT_EQ(audit.warnings.size(), 1U);
    EXPECT_SAYS(audit.warnings[0], message);
  }
}

TEST(EndOfTextAudit, WarnsWhenTheFolderNamesNoEndToken) {
  EXPECT_FALSE(audit_end_of_text(StoppingTokenizer(257, {})));
  const auto warning = audit_end_of_text(StoppingTokenizer(std::nullopt, {}));
  ASSERT_TRUE(warning);
  EXPECT_SAYS(*warning, "names no end token");
}

}  // namespace
}  // namespace lora_train::data
