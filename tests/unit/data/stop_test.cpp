// A stop that is asked for while data are prepared is seen there.
#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "cache/token_cache.h"
#include "data/read/example_reader.h"
#include "data/read/json_examples.h"
#include "document_checks.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/plan/epoch_rows.h"
#include "lora_train/data/prepare.h"
#include "plan_support.h"
#include "prepare_fixture.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

/// 4 MiB of line ends, by gzip -9n.
std::string packed_line_ends() {
  constexpr std::string_view kBegin(
      "\037\213\010\000\000\000\000\000\002\377\355\301\061\001\000\000\000\302\240\177\375\003\033\104\240", 25),
      kEnd("\276\015\276\370\052\002\000\000\100\000", 10);
  return std::string(kBegin) + std::string(4064, '\0') + std::string(kEnd);
}

class Stop : public testing::Test {
 protected:
  Stop() { set_log_level(LogLevel::kOff); }
  ~Stop() override { set_log_level(LogLevel::kInfo); }

  StopRequests requests_;
  testing_support::TemporaryFolder folder_;
};

TEST_F(Stop, IsSeenWhileExamplesAreTokenisedAndLeavesNoTable) {
  write_file_atomic(folder_ / "rows.jsonl", texts(1000));
  DataSection section;
  section.datasets.emplace_back().path = (folder_ / "rows.jsonl").string();
  const ByteTokenizer tokenizer;
  const PlainTemplate chat_template;
  const DataContext context{
      .tokenizer = &tokenizer, .chat_template = &chat_template, .cache_folder = folder_ / "cache"};
  const auto prepare = [&] { return prepare_data(section, context, true); };
  set_max_time(0);
  EXPECT_THROW(prepare(), StopError);
  if (std::filesystem::exists(folder_ / "cache")) {
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "cache"))
      EXPECT_EQ(file.path().filename(), ".lock");
  }
  set_max_time(1000);
  EXPECT_EQ(prepare().train.size(), 1000U);
}

TEST_F(Stop, IsSeenInsideOneExampleAndWhereAFileHasNone) {
  set_max_time(0);
  EXPECT_THROW(parse_json_example("{\"a\": [" + std::string(1 << 17, ' ') + "]}"), StopError);
  const std::string blank(3 << 20, '\n');
  for (const char* name : {"rows.jsonl", "rows.txt", "rows.csv"}) {
    write_file_atomic(folder_ / name, blank);
    set_max_time(1000);
    const auto reader = ExampleReader::open(folder_ / name);  // reads the first MiB
    set_max_time(0);
    EXPECT_THROW(reader->next(), StopError) << name;
  }
  write_file_atomic(folder_ / "rows.jsonl.gz", packed_line_ends());
  set_max_time(1000);
  const auto reader = ExampleReader::open(folder_ / "rows.jsonl.gz");
  set_max_time(0);
  EXPECT_THROW(reader->next(), StopError);
}

TEST_F(Stop, KeepsTheTableThatIsRead) {
  const std::string key(32, 'a');
  const TokenCache cache(folder_ / "cache", {});
  const std::vector<std::int32_t> ids = {1};
  {
    TokenTableWriter writer = cache.writer(key);
    writer.append(ids, ids, 0, 1);
    writer.finish("{}");
  }
  set_max_time(0);
  EXPECT_THROW(cache.find(key), StopError);
  set_max_time(1000);
  EXPECT_NE(cache.find(key), nullptr);
}

TEST_F(Stop, IsSeenWhileStepsAreCounted) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(10, 5));
  set_max_time(0);
  PlanOptions options = options_with(1, 1, 1e5);
  options.packing = false;
  EXPECT_THROW(RunPlan(store, options).step(1), StopError);  // all epochs have 10 steps
  options.ranges = {{0, 10, 0.25}};
  EXPECT_THROW(RunPlan(store, options), StopError);
  options.num_epochs = std::nullopt;
  options.max_steps = 1'000'000'000'000;
  const RunPlan endless(store, options);
  EXPECT_THROW(endless.step(1'000'000), StopError);
  EXPECT_THROW(endless.ends_epoch(1'000'000), StopError);
}

TEST_F(Stop, IsSeenInLoopsOverDocuments) {
  constexpr std::size_t kMany = 5000;
  const PhiloxKey key{1, 2};
  set_max_time(1000);
  const DocumentStore store = store_of(std::vector<std::uint32_t>(kMany, 1));
  set_max_time(0);
  Ledger ledger;
  EXPECT_THROW(shuffled(kMany, key, 0), StopError);
  EXPECT_THROW(one_document_a_row(Documents(kMany)), StopError);
  EXPECT_THROW(pack_next_fit(Documents(kMany), Documents{1}, 8), StopError);
  EXPECT_THROW(length_statistics({&store}), StopError);
  EXPECT_THROW(apply_length_policy(DocumentStore(store), 8, Overlength::kDrop, ledger, "data"), StopError);
  EXPECT_THROW(count_duplicates(store, {}, ledger), StopError);
  EXPECT_THROW(pack_first_fit_decreasing(Documents{0, 1, 2}, Documents{3, 4, 5}, 8, key, 2), StopError);
  TokenTableWriter writer({}, "key");
  const std::vector<std::int32_t> ids = {1};
  for (std::size_t i = 0; i < kMany; ++i) writer.append(ids, ids, 0, i + 1);
  set_max_time(1000);
  const auto table = writer.finish("{}");
  set_max_time(0);
  EXPECT_THROW(DocumentStore().add(table, {"f"}), StopError);
}

}  // namespace
}  // namespace lora_train::data
