#include "lora_train/run/run_costs.h"

#include <gtest/gtest.h>

#include <thread>

#include "lora_train/base/file.h"
#include "support/environment.h"
#include "support/temporary_folder.h"

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

TEST_F(RunPrice, IsThatOfTheProfileOrOfTheDriversNameInTheTable) {
  const auto gpus = table("2.5");
  const auto words = [&](std::optional<double> given, const std::string& gpu, int num_gpus) {
    const auto price = find_price(given, gpu, num_gpus, gpus);
    return price ? fmt::format("{} {}", price->per_hour(), price->source) : "none";
  };
  EXPECT_EQ(words(3.0, "NVIDIA A", 4), "12 profile");
  EXPECT_EQ(words(0.0, "NVIDIA A", 1), "0 profile");
  EXPECT_EQ(words({}, "NVIDIA A", 4), "10 GPU table");
  EXPECT_EQ(words({}, "NVIDIA AB", 4), "none");
  EXPECT_EQ(words({}, "A", 4), "none");
  EXPECT_EQ(words({}, "", 1), "none") << "a CPU";
  EXPECT_EQ(find_price(1.25, "", 1, {})->in_words(), "$1.25 an hour (profile)");
}

TEST_F(RunPrice, ABrokenTableEndsNoRun) {
  testing::internal::CaptureStderr();
  EXPECT_FALSE(find_price({}, "NVIDIA A", 1, table("-1")));
  EXPECT_FALSE(find_price({}, "NVIDIA A", 1, folder_ / "none.json"));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("price_per_hour: is -1"), std::string::npos);
}

TEST(StartupTimes, PhasesOfOneNameAddUp) {
  const auto start = StartupTimes::Clock::now();
  StartupTimes times;
  times.end_phase("data");
  times.end_phase("weights");
  times.end_phase("data");
  times.finish();
  const double most_s = std::chrono::duration<double>(StartupTimes::Clock::now() - start).count();
  times.end_phase("late");
  ASSERT_EQ(times.phases().size(), 2U);
  EXPECT_EQ(times.phases()[0].first, "data");
  EXPECT_EQ(times.phases()[1].first, "weights");
  EXPECT_LE(times.phases()[0].second + times.phases()[1].second, most_s);
}

}  // namespace
}  // namespace lora_train::run
