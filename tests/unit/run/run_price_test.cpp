#include <gtest/gtest.h>

#include "lora_train/base/file.h"
#include "lora_train/run/run_costs.h"
#include "support/temporary_folder.h"

namespace lora_train::run {
namespace {

class RunPrice : public ::testing::Test {
 protected:
  std::filesystem::path table(const std::string& price) const {
    write_file_atomic(
        folder_ / "gpus.json",
        R"([{"name": "A", "device_name": "NVIDIA A", "memory_gib": 1, "num_multiprocessors": 1, "gemm_tflops": 1,
                          "bandwidth_gb_s": 1, "link_gb_s": 1, "price_per_hour": )" +
            price + "}]");
    return folder_ / "gpus.json";
  }
  const testing_support::TemporaryFolder folder_;
};

TEST_F(RunPrice, TheProfileGoesBeforeTheTable) {
  const auto price = find_price(3.0, "NVIDIA A", 4, table("2.5"));
  ASSERT_TRUE(price);
  EXPECT_EQ(price->per_hour(), 12);
  EXPECT_EQ(price->source, "profile");
  EXPECT_EQ(find_price(0.0, "NVIDIA A", 1, table("2.5"))->per_hour(), 0);
}

TEST_F(RunPrice, TheTableKnowsTheGpuByTheNameOfItsDriver) {
  const auto price = find_price({}, "NVIDIA A", 4, table("2.5"));
  ASSERT_TRUE(price);
  EXPECT_EQ(price->per_hour(), 10);
  EXPECT_EQ(price->source, "GPU table");
  EXPECT_FALSE(find_price({}, "NVIDIA AB", 4, table("2.5")));
  EXPECT_FALSE(find_price({}, "A", 4, table("2.5")));
}

TEST_F(RunPrice, ACpuCostsWhatTheProfileSays) {
  EXPECT_FALSE(find_price({}, "", 1, table("2.5")));
  EXPECT_EQ(find_price(1.25, "", 1, {})->in_words(), "$1.25 an hour (profile)");
}

TEST_F(RunPrice, ABrokenTableEndsNoRun) {
  testing::internal::CaptureStderr();
  EXPECT_FALSE(find_price({}, "NVIDIA A", 1, table("-1")));
  EXPECT_FALSE(find_price({}, "NVIDIA A", 1, folder_ / "none.json"));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("price_per_hour: is -1"), std::string::npos);
}

}  // namespace
}  // namespace lora_train::run
