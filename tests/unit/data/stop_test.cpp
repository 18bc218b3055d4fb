// A stop that is asked for while data are prepared is seen there.
#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/packing.h"
#include "lora_train/data/prepare.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

class Stop : public testing::Test {
 protected:
  Stop() { set_log_level(LogLevel::kOff); }
  ~Stop() override { set_log_level(LogLevel::kInfo); }

  StopRequests requests_;
  testing_support::TemporaryFolder folder_;
};

TEST_F(Stop, IsSeenWhileRowsAreTokenisedAndLeavesNoTable) {
  std::string rows;
  for (int i = 0; i < 1000; ++i) rows += "{\"text\": \"row " + std::to_string(i) + "\"}\n";
  write_file_atomic(folder_ / "rows.jsonl", rows);
  DataSection section;
  section.datasets.emplace_back().path = (folder_ / "rows.jsonl").string();
  const ByteTokenizer tokenizer;
  const PlainTemplate chat_template;
  const DataContext context{
      .tokenizer = &tokenizer, .chat_template = &chat_template, .cache_folder = folder_ / "cache"};
  const auto prepare = [&] { return prepare_data(section, context, true); };
  set_max_time(0);
  EXPECT_THROW(prepare(), StopError);
  EXPECT_TRUE(!std::filesystem::exists(folder_ / "cache") || std::filesystem::is_empty(folder_ / "cache"));
  set_max_time(1000);
  EXPECT_EQ(prepare().train.size(), 1000U);
}

TEST_F(Stop, IsSeenWhileRowsArePacked) {
  const std::vector<std::uint32_t> order = {0, 1, 2}, lengths = {3, 4, 5};
  set_max_time(0);
  EXPECT_THROW(pack_first_fit_decreasing(order, lengths, 8, PhiloxKey{1, 2}, 2), StopError);
}

}  // namespace
}  // namespace lora_train::data
