#include <gtest/gtest.h>

#include <thread>

#include "lora_train/run/run_costs.h"
#include "support/environment.h"

namespace lora_train::run {
namespace {

constexpr const char* kUuid = "GPU-00000000-0000-0000-0000-00000000abc0";

/// With the GPU of tests/programs/fake_driver. Each reading of the sensors takes a millisecond.
class ResourceWatchTest : public ::testing::Test {
 protected:
  void watch(const char* sensors) {
    environment.set("FAKE_SENSORS", sensors);
    testing::internal::CaptureStderr();
    resources.watch_gpu(kUuid, {FAKE_NVML, std::chrono::milliseconds(1)});
  }
  void wait_for_readings(long num_readings) {
    for (int i = 0; i < 10000 && resources.gpu_in_steps().num_readings < num_readings; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string stop() {
    resources.stop();
    return testing::internal::GetCapturedStderr();
  }

  testing_support::ScopedEnvironment environment;
  ResourceWatch resources;
};

TEST_F(ResourceWatchTest, WithoutAGpuItKnowsProcessorAndMemory) {
  report::StepRecord record;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  while (std::chrono::steady_clock::now() < end) {
  }
  resources.fill(record);
  EXPECT_GT(record.cpu_percent, 0);
  EXPECT_LT(record.cpu_percent, 200);
  EXPECT_GT(record.host_memory_gib, 0);
  EXPECT_FALSE(record.gpu_utilization);
  EXPECT_TRUE(resources.own().cpu_s);
  EXPECT_FALSE(resources.own().energy_wh);
  EXPECT_FALSE(resources.gpu_utilization());
}

TEST_F(ResourceWatchTest, ALoggedStepHasTheFiguresOfItsGpu) {
  watch("utilization=97;power=600000;temperature=65;clock=1980;throttle=4;energy=0,3600000");
  wait_for_readings(3);
  report::StepRecord record;
  resources.fill(record);
  EXPECT_EQ(record.gpu_utilization, 97);
  EXPECT_EQ(record.gpu_power_w, 600);
  EXPECT_EQ(record.gpu_throttle, std::vector<std::string>{"power_cap"});
  EXPECT_EQ(resources.gpu_utilization(), 97);
  EXPECT_EQ(stop(), "");
  EXPECT_EQ(resources.own().energy_wh, 1);
}

TEST_F(ResourceWatchTest, UtilizationCountsFromTheFirstStepOnAndEnergyFromTheStart) {
  watch("utilization=0,0,0,100;energy=0,3600000");
  wait_for_readings(4);
  resources.begin_steps();
  wait_for_readings(3);
  stop();
  EXPECT_NEAR(resources.own().mean_gpu_utilization().value(), 100, 1e-6);
  EXPECT_EQ(resources.own().energy_wh, 1);
}

TEST_F(ResourceWatchTest, TheSumIsThatOfAllRanks) {
  watch("utilization=100;energy=0,3600000");
  wait_for_readings(3);
  stop();
  RankFigures own;
  resources.put(own);
  EXPECT_EQ(own.energy_wh, 1);
  const RankFigures other{.cpu_s = 5, .energy_wh = 2, .gpu_watched_s = own.gpu_watched_s, .gpu_busy_s = 0};
  resources.take({own, other, other}, 0);
  EXPECT_EQ(resources.of_all_ranks().energy_wh, 5);
  EXPECT_NEAR(resources.of_all_ranks().mean_gpu_utilization().value(), 100.0 / 3, 1e-6);
  EXPECT_GT(resources.of_all_ranks().cpu_s.value(), 10);
  RankFigures silent = other;
  silent.energy_wh = -1;
  resources.take({own, other, silent}, 0);
  EXPECT_FALSE(resources.of_all_ranks().energy_wh) << "one does not know its own";
  EXPECT_TRUE(resources.of_all_ranks().cpu_s);
}

}  // namespace
}  // namespace lora_train::run
