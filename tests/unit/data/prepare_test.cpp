#include "lora_train/data/prepare.h"

#include <gtest/gtest.h>

#include <set>

#include "byte_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

std::string texts(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += "{\"text\": \"row " + std::to_string(i) + "\"}\n";
  return out;
}

class PrepareData : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override { set_log_level(LogLevel::kInfo); }

  DatasetSpec dataset(const std::string& name, std::string_view bytes) {
    write_file_atomic(folder_ / name, bytes);
    DatasetSpec spec;
    spec.path = (folder_ / name).string();
    return spec;
  }
  PreparedData prepare(const DataOptions& options, bool need_train = true) const {
    return prepare_data(options, &tokenizer_, &template_, limits_, need_train);
  }
  // "where: message" without the folder's name.
  std::string refusal(const DataOptions& options) const {
    try {
      prepare(options);
    } catch (const DataError& error) {
      std::string what = error.what();
      for (auto at = what.find(folder_.path().string()); at != std::string::npos;
           at = what.find(folder_.path().string())) {
        what.erase(at, folder_.path().string().size() + 1);
      }
      return what;
    }
    return "accepted";
  }

  testing_support::TemporaryFolder folder_;
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  DataLimits limits_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(PrepareData, MarksOfTurnsDecideTheMaskAndAreRefusedByLine) {
  const auto row = [](const std::string& mark) {
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
           R"({"role": "assistant", "content": "cd")" +
           mark + "}]}\n";
  };
  DataOptions options;
  options.datasets = {dataset("m.jsonl", row("") + row(R"(, "train": false)") + row(R"(, "weight": 1)"))};
  const PreparedData data = prepare(options);
  const auto supervised = [&](std::size_t i) { return data.train.num_supervised(i); };
  EXPECT_EQ(supervised(0), 5);  // "b." and "cd."
  EXPECT_EQ(supervised(1), 2);  // "b."
  EXPECT_GT(supervised(2), 5);  // the fake template writes the mark
  options.datasets = {dataset("w.jsonl", row("") + row(R"(, "weight": -0.5)"))};
  EXPECT_SAYS(refusal(options), "w.jsonl:2");
  EXPECT_SAYS(refusal(options), "messages[2].weight is -0.5");
  const std::string call =
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f 1"}]})";
  options.datasets = {dataset("f.jsonl", call + "\n")};
  EXPECT_SAYS(refusal(options), "f.jsonl:1");
  EXPECT_SAYS(refusal(options), "invalid JSON");
}

TEST_F(PrepareData, ReadsSetsOfDifferentLayoutsInOrder) {
  DataOptions options;
  options.datasets = {
      dataset("t.jsonl", "{\"text\": \"abc\"}\n"),
      dataset("c.jsonl",
              "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
              "\"content\": \"b\"}]}\n"),
      dataset("i.json", "[{\"input_ids\": [1, 2],\n\"labels\": [-100, 2]}]"),
  };
  const PreparedData data = prepare(options);
  ASSERT_EQ(data.train.size(), 3U);
  EXPECT_EQ(data.train.num_supervised(0), 3);  // two bytes after the first, and EOS
  EXPECT_EQ(data.train.num_supervised(1), 2);  // "b."
  EXPECT_EQ(data.train.num_supervised(2), 1);
  EXPECT_EQ(data.train.source(2), (folder_ / "i.json").string() + ":1");
  EXPECT_EQ(data.ledger.total, 3);
  EXPECT_EQ(data.ledger.kept, 3);
  EXPECT_EQ(data.max_seq_len, 64);
  EXPECT_TRUE(data.max_seq_len_is_auto);
  EXPECT_EQ(data.train_lengths.longest, 19);
  EXPECT_SAYS(data.loss_description, "assistant turns of chats");
  EXPECT_SAYS(data.loss_description, "the rows' own labels");
}

TEST_F(PrepareData, AnyNumberOfThreadsGivesTheSameData) {
  std::string bytes;
  for (int i = 0; i < 60000; ++i) {
    bytes += i % 1000 == 7 ? "{\"text\": 5}\n" : "{\"text\": \"row " + std::to_string(i % 977) + "\"}\n";
  }
  DataOptions options;
  options.datasets = {dataset("t.jsonl", bytes)};
  options.on_bad_row = OnBadRow::kDrop;
  std::vector<std::string> seen;
  for (const std::size_t num_threads : {1U, 2U, 7U}) {
    options.num_threads = num_threads;
    const PreparedData data = prepare(options);
    std::string all = join(data.ledger.lines(), "\n");
    for (std::size_t i = 0; i < data.train.size(); ++i) {
      all += data.train.source(i) + ":" + tokenizer_.decode(data.train.ids(i), false);
    }
    seen.push_back(all);
  }
  EXPECT_EQ(seen[1], seen[0]);
  EXPECT_EQ(seen[2], seen[0]);
  options.on_bad_row = OnBadRow::kError;
  EXPECT_SAYS(refusal(options), "t.jsonl:8: text is number");
}

TEST_F(PrepareData, TokenCacheGivesTheSameDataAndIsNeverStale) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", texts(50) + "{\"text\": NaN}\n")};
  options.on_bad_row = OnBadRow::kDrop;
  options.max_drop_fraction = 1;
  options.cache_folder = folder_ / "cache";
  const auto num_tables = [&] {
    std::filesystem::directory_iterator files(options.cache_folder);
    return std::distance(begin(files), end(files));
  };
  const PreparedData first = prepare(options), again = prepare(options);
  EXPECT_EQ(num_tables(), 1);
  ASSERT_EQ(again.train.size(), first.train.size());
  for (std::size_t i = 0; i < first.train.size(); ++i) {
    EXPECT_EQ(view_rows(again.train, &tokenizer_, i, 1)[0].text, view_rows(first.train, &tokenizer_, i, 1)[0].text);
    EXPECT_EQ(again.train.source(i), first.train.source(i));
  }
  EXPECT_EQ(again.ledger.lines(), first.ledger.lines());
  EXPECT_EQ(again.loss_description, first.loss_description);
  EXPECT_EQ(again.fingerprint, first.fingerprint);

  // Every option that decides a row's tokens makes another table; what is applied later does not.
  options.max_seq_len = 4096;
  options.overlength = Overlength::kDrop;
  options.seed = 7;
  prepare(options);
  EXPECT_EQ(num_tables(), 1);
  options.loss_on = LossOn::kAll;
  prepare(options);
  EXPECT_EQ(num_tables(), 2);
  options.datasets[0].type = DatasetType::kText;
  prepare(options);
  EXPECT_EQ(num_tables(), 3);
  options.datasets[0].field_map = {{"text", "text"}};
  prepare(options);
  EXPECT_EQ(num_tables(), 4);
  const ByteTokenizer with_bos(true);
  prepare_data(options, &with_bos, &template_, limits_, true);
  EXPECT_EQ(num_tables(), 5);
  dataset("t.jsonl", texts(51));
  EXPECT_EQ(prepare(options).train.size(), 51U);
  EXPECT_EQ(num_tables(), 6);
}

TEST_F(PrepareData, WeightsFollowTheirDatasets) {
  DataOptions options;
  options.datasets = {dataset("a.jsonl", texts(10)), dataset("b.jsonl", texts(30))};
  options.datasets[1].weight = 0.5;
  options.val_set_size = 8;
  const PreparedData data = prepare(options);
  ASSERT_EQ(data.train_ranges.size(), 2U);
  EXPECT_EQ(data.train_ranges[0].begin, 0U);
  EXPECT_EQ(data.train_ranges[0].end, data.train_ranges[1].begin);
  EXPECT_EQ(data.train_ranges[1].end, 32U);
  EXPECT_EQ(data.train_ranges[1].weight, 0.5);
  EXPECT_SAYS(data.train.source(data.train_ranges[1].begin), "b.jsonl:");
  EXPECT_SAYS(data.train.source(data.train_ranges[1].begin - 1), "a.jsonl:");
}

TEST_F(PrepareData, RepeatedRowsAreCountedAndKept) {
  DataOptions options;
  options.datasets = {dataset("a.jsonl", texts(5) + texts(2))};
  options.eval_datasets = {dataset("e.jsonl", texts(1))};
  const PreparedData data = prepare(options);
  EXPECT_EQ(data.train.size(), 7U);
  EXPECT_EQ(data.ledger.kept, 7);
  ASSERT_EQ(data.ledger.entries.size(), 2U);
  EXPECT_EQ(data.ledger.entries[0].reason, LedgerReason::kDuplicate);
  EXPECT_EQ(data.ledger.entries[0].count, 2);
  EXPECT_EQ(data.ledger.entries[1].reason, LedgerReason::kInValidation);
  EXPECT_EQ(data.ledger.entries[1].count, 2);
}

TEST_F(PrepareData, PretokenisedRowsNeedNoTokenizer) {
  DataOptions options;
  options.datasets = {dataset("i.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n")};
  const PreparedData data = prepare_data(options, nullptr, nullptr, {3, 0}, true);
  EXPECT_EQ(data.train.size(), 1U);
  EXPECT_TRUE(view_rows(data.train, nullptr, 0, 5)[0].pieces.empty());
  EXPECT_THROW(prepare_data(options, nullptr, nullptr, {2, 0}, true), DataError);
}

TEST_F(PrepareData, BadRowStopsWithItsPlace) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", "{\"text\": \"a\"}\n{\"text\": NaN}\n")};
  EXPECT_SAYS(refusal(options), "t.jsonl:2:10: NaN and Infinity");
  options.datasets = {dataset("t.jsonl", "{\"text\": \"a\"}\n{\"text\": 5}\n")};
  EXPECT_SAYS(refusal(options), "t.jsonl:2: text is number, expected a string");
  options.datasets = {dataset("t.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n")};
  EXPECT_SAYS(refusal(options), "t.jsonl:2: \"text\" is missing");
  options.datasets = {dataset("t.jsonl", "{\"what\": \"a\"}\n")};
  EXPECT_SAYS(refusal(options), "t.jsonl:1: no known layout");
}

TEST_F(PrepareData, BadRowsAreDroppedAndCountedWhenAsked) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", "{\"text\": NaN}\n" + texts(8) + "{\"text\": 5}\n")};
  options.on_bad_row = OnBadRow::kDrop;
  options.max_drop_fraction = 0.2;
  const PreparedData data = prepare(options);
  EXPECT_EQ(data.train.size(), 8U);
  EXPECT_EQ(data.ledger.total, 10);
  ASSERT_EQ(data.ledger.entries.size(), 1U);
  EXPECT_EQ(data.ledger.entries[0].count, 2);
  EXPECT_SAYS(data.ledger.entries[0].first_source, "t.jsonl:1:10");
  options.max_drop_fraction = 0.19;
  EXPECT_SAYS(refusal(options), "t.jsonl:1:10: training data would lose 2 of 10 rows");
}

TEST_F(PrepareData, RefusesEmptyData) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", "\n\n")};
  EXPECT_SAYS(refusal(options), "t.jsonl: the file has no row");
  options.datasets = {dataset("t.json", " [ ] ")};
  EXPECT_SAYS(refusal(options), "t.json: the file has no row");
  options.datasets = {dataset("t.jsonl", "nope\n")};
  options.on_bad_row = OnBadRow::kDrop;
  EXPECT_SAYS(refusal(options), "no row of the training data is left");
  options.datasets = {};
  EXPECT_THROW(prepare(options), ConfigError);
  EXPECT_THROW(prepare(options, /*need_train=*/false), ConfigError);
}

TEST_F(PrepareData, RefusesARunWithEveryLabelMaskedAndShowsRows) {
  DataOptions options;
  options.datasets = {dataset("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}\n")};
  const std::string message = refusal(options);
  EXPECT_SAYS(message, "c.jsonl:1: every row of the training data is masked");
  EXPECT_SAYS(message, "user:hello.");
  EXPECT_SAYS(message, "loss_on: auto");
}

TEST_F(PrepareData, OneMaskedRowGoesToTheLedger) {
  DataOptions options;
  const std::string good = "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n";
  options.datasets = {dataset("i.jsonl", good + "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n" + good)};
  EXPECT_SAYS(refusal(options), "i.jsonl:2: training data would lose 1 of 3 rows");
  options.max_drop_fraction = 0.5;
  const PreparedData data = prepare(options);
  EXPECT_EQ(data.train.size(), 2U);
  EXPECT_EQ(data.ledger.entries[0].reason, LedgerReason::kFullyMasked);
}

TEST_F(PrepareData, HoldsOutTheSameRowsForTheSameSeed) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", texts(50))};
  options.val_set_size = 0.11;
  const auto sources = [](const DocumentStore& store) {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < store.size(); ++i) {
      out.push_back(store.source(i));
    }
    return out;
  };
  const PreparedData data = prepare(options);
  ASSERT_EQ(data.evals.size(), 1U);
  EXPECT_EQ(data.evals[0].name, "validation");
  EXPECT_EQ(data.evals[0].store.size(), 6U);  // 5.5 rounded up
  EXPECT_EQ(data.train.size(), 44U);
  std::set<std::string> all;
  for (const auto& part : {sources(data.train), sources(data.evals[0].store)}) {
    all.insert(part.begin(), part.end());
  }
  EXPECT_EQ(all.size(), 50U);
  EXPECT_EQ(sources(prepare(options).evals[0].store), sources(data.evals[0].store));
  options.seed = 43;
  EXPECT_NE(sources(prepare(options).evals[0].store), sources(data.evals[0].store));
  options.val_set_size = 7;
  EXPECT_EQ(prepare(options).evals[0].store.size(), 7U);
  const PreparedData only_eval = prepare(options, /*need_train=*/false);
  EXPECT_EQ(only_eval.evals[0].store.size(), 7U);
  EXPECT_TRUE(only_eval.train.empty());
  options.val_set_size = 50;
  EXPECT_SAYS(refusal(options), "val_set_size: 50 would hold out 50 of 50 rows");
}

TEST_F(PrepareData, EvaluationSetsHaveNamesAndAtMostSoManyRows) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", texts(3))};
  options.eval_datasets = {dataset("val.jsonl", texts(9)), dataset("val.json", "[{\"text\": \"long enough\"}]")};
  options.eval_max_samples = 4;
  const PreparedData data = prepare(options);
  ASSERT_EQ(data.evals.size(), 2U);
  EXPECT_EQ(data.evals[0].name, "val");
  EXPECT_EQ(data.evals[1].name, "val-2");
  EXPECT_EQ(data.evals[0].store.size(), 4U);
  EXPECT_SAYS(data.evals[0].store.source(3), "val.jsonl:4");
  EXPECT_EQ(data.evals[0].ledger.total, 4);
}

TEST_F(PrepareData, EvaluationDoesNotReadTrainingData) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", "broken")};
  options.eval_datasets = {dataset("val.jsonl", texts(2))};
  EXPECT_EQ(prepare(options, /*need_train=*/false).evals[0].store.size(), 2U);
}

TEST_F(PrepareData, LengthPolicyHoldsForEvaluationToo) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", texts(3))};
  options.eval_datasets = {dataset("val.jsonl", "{\"text\": \"" + std::string(100, 'x') + "\"}\n")};
  EXPECT_EQ(prepare(options).max_seq_len, 128);
  options.max_seq_len = 64;
  EXPECT_SAYS(refusal(options),
              "val.jsonl:1: 1 of 1 rows of the evaluation data \"val\" are longer than max_seq_len: 64");
  limits_.max_position_embeddings = 80;
  options.max_seq_len = std::nullopt;
  options.overlength = Overlength::kTruncate;
  const PreparedData data = prepare(options);
  EXPECT_EQ(data.max_seq_len, 80);
  EXPECT_EQ(data.evals[0].store.num_tokens(0), 80);
}

TEST_F(PrepareData, FingerprintFollowsDataAndOptionsNotThePath) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", texts(5))};
  const std::string first = prepare(options).fingerprint;
  EXPECT_EQ(first.size(), 32U);
  options.datasets = {dataset("copy.jsonl", texts(5))};
  EXPECT_EQ(prepare(options).fingerprint, first);
  options.loss_on = LossOn::kAll;
  EXPECT_NE(prepare(options).fingerprint, first);
  options.loss_on = LossOn::kAuto;
  options.max_seq_len = 100;
  EXPECT_NE(prepare(options).fingerprint, first);
  options.max_seq_len = std::nullopt;
  options.datasets = {dataset("t.jsonl", texts(6))};
  EXPECT_NE(prepare(options).fingerprint, first);
}

TEST_F(PrepareData, CountsContentThatTheTemplateLeavesOut) {
  DataOptions options;
  options.datasets = {dataset("c.jsonl",
                              "{\"messages\": [{\"role\": \"system\", \"content\": \"hidden\"}, {\"role\": "
                              "\"assistant\", \"content\": \"b\"}]}\n")};
  const PreparedData data = prepare(options);
  EXPECT_EQ(data.train.size(), 1U);
  ASSERT_EQ(data.ledger.entries.size(), 1U);
  EXPECT_EQ(data.ledger.entries[0].reason, LedgerReason::kNotRendered);
  EXPECT_EQ(data.ledger.lost(), 0);
}

TEST_F(PrepareData, TakesItsOptionsFromTheProfile) {
  Profile profile;
  profile.data.datasets = {dataset("t.jsonl", texts(2))};
  profile.data.max_seq_len = 77;
  profile.data.overlength = Overlength::kDrop;
  profile.run.seed = 9;
  const DataOptions options = data_options(profile);
  EXPECT_EQ(options.datasets, profile.data.datasets);
  EXPECT_EQ(options.max_seq_len, 77);
  EXPECT_EQ(options.overlength, Overlength::kDrop);
  EXPECT_EQ(options.seed, 9);
}

TEST_F(PrepareData, ViewJoinsTokensOfOneCharacter) {
  DataOptions options;
  options.datasets = {dataset("t.jsonl", "{\"text\": \"a\xC3\xA9z\"}\n" + texts(3))};
  const PreparedData data = prepare(options);
  const auto views = view_rows(data.train, &tokenizer_, 0, 2);
  ASSERT_EQ(views.size(), 2U);
  EXPECT_EQ(views[0].pieces, (std::vector<std::string>{"a", "", "\xC3\xA9", "z", "</s>"}));
  EXPECT_EQ(views[0].text, "a\xC3\xA9z</s>");
  EXPECT_SAYS(views[1].source, "t.jsonl:2");
  EXPECT_EQ(view_rows(data.train, &tokenizer_, 3, 9).size(), 1U);
}

}  // namespace
}  // namespace lora_train::data
