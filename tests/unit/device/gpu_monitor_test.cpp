#include "lora_train/device/gpu_monitor.h"

#include <functional>
#include <thread>

#include "fake_machine.h"

namespace lora_train::device {
namespace {

constexpr const char* kUuid = "GPU-00000000-0000-0000-0000-00000000abc0";

/// Waits until it holds, at most 10 s.
bool becomes(const std::function<bool()>& holds) {
  for (int i = 0; i < 10000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

class GpuMonitorTest : public FakeMachine {
 protected:
  /// After so many readings at least, and the thread has ended.
  std::unique_ptr<GpuMonitor> watched(long num_readings, const char* uuid = kUuid, const char* library = FAKE_NVML) {
    testing::internal::CaptureStderr();
    auto monitor = std::make_unique<GpuMonitor>(uuid, GpuMonitorOptions{library, std::chrono::milliseconds(1)});
    EXPECT_TRUE(becomes([&] { return monitor->totals().num_readings >= num_readings; }));
    monitor->stop();
    log = testing::internal::GetCapturedStderr();
    return monitor;
  }

  std::string log;
};

TEST_F(GpuMonitorTest, TakesMeansOverTheReadings) {
  set("FAKE_SENSORS", "utilization=100,50,0,50;power=300000;temperature=64,66,65;clock=1980;energy=1000;throttle=1");
  const auto monitor = watched(40);
  const GpuFigures figures = monitor->take();
  EXPECT_NEAR(figures.utilization.value(), 50, 1e-9);
  EXPECT_NEAR(figures.power_w.value(), 300, 1e-9);
  EXPECT_NEAR(figures.temperature_c.value(), 65, 0.1);
  EXPECT_NEAR(figures.clock_mhz.value(), 1980, 1e-9);
  EXPECT_GT(figures.memory_used_gib.value(), 0);
  EXPECT_TRUE(figures.throttle.empty()) << "a GPU that idles is not slowed down";
  EXPECT_EQ(log, "");
  const GpuTotals totals = monitor->totals();
  EXPECT_GT(totals.watched_s, 0);
  EXPECT_LT(totals.busy_s, totals.watched_s);
}

TEST_F(GpuMonitorTest, WithoutANewReadingTheLastOneCounts) {
  set("FAKE_SENSORS", "utilization=10,20,90");
  const auto monitor = watched(3);
  EXPECT_LT(monitor->take().utilization.value(), 90);
  EXPECT_EQ(monitor->take().utilization, 90);
  EXPECT_EQ(monitor->utilization(), 90);
}

TEST_F(GpuMonitorTest, TheCounterOfEnergyIsPreferredAndMayBeginAnew) {
  set("FAKE_SENSORS",
      "power=300000;energy=7200000,10800000,3600000,7200000");  // 2 Wh, 3, the driver is loaded anew, 1, 2
  EXPECT_NEAR(watched(4)->totals().energy_wh.value(), 2, 1e-9);
}

TEST_F(GpuMonitorTest, WithoutACounterEnergyIsTheIntegralOfPower) {
  set("FAKE_SENSORS", "power=3600000000;utilization=100");  // 1 kWh a second, so that a test can measure it
  const auto monitor = watched(5);
  const GpuTotals totals = monitor->totals();
  EXPECT_NEAR(totals.energy_wh.value(), totals.watched_s * 1000, 1e-6);
  EXPECT_SAYS(log, "unknown figures of the GPU: energy counter (Not Supported), temperature");
}

TEST_F(GpuMonitorTest, NamesWhatSlowsTheGpuDown) {
  using enum Throttle;
  set("FAKE_SENSORS", "throttle=4,72,72,40");  // power cap; a hot chip says so twice, in general and in particular
  const auto monitor = watched(4);
  EXPECT_EQ(monitor->take().throttle, (std::vector{kPowerCap, kThermal, kHardwareThermal, kHardwareSlowdown}));
  const GpuTotals totals = monitor->totals();
  const auto num_of = [&](Throttle reason) { return totals.num_throttled[static_cast<std::size_t>(reason)]; };
  EXPECT_EQ(num_of(kPowerCap), 1);
  EXPECT_EQ(num_of(kHardwareThermal), 2);
  EXPECT_EQ(num_of(kHardwareSlowdown), totals.num_readings - 3);
  EXPECT_STREQ(to_string(kHardwareThermal), "hw_thermal");
}

TEST_F(GpuMonitorTest, WhatNvmlCannotSayIsEmptyAndNamedOnce) {
  set("FAKE_SENSORS", "utilization=97");
  const auto monitor = watched(10);
  const GpuFigures figures = monitor->take();
  EXPECT_EQ(figures.utilization, 97);
  EXPECT_FALSE(figures.power_w || figures.temperature_c || figures.clock_mhz || monitor->totals().energy_wh);
  EXPECT_EQ(log,
            "unknown figures of the GPU: power (Not Supported), energy counter (Not Supported), temperature (Not "
            "Supported), clock (Not Supported), throttling (Not Supported)\n");
}

TEST_F(GpuMonitorTest, AnOldDriverLacksFunctions) {
  set("FAKE_SENSORS", "utilization=97;power=1;temperature=1;clock=1;throttle=4;energy=1");
  const auto monitor = watched(2, kUuid, FAKE_OLD_NVML);
  EXPECT_EQ(log, "unknown figures of the GPU: energy counter (Function Not Found)\n");
  EXPECT_EQ(monitor->take().throttle, std::vector<Throttle>{Throttle::kPowerCap})
      << "under the old name of the function";
}

TEST_F(GpuMonitorTest, ASensorThatFailsLaterIsNamedThen) {
  set("FAKE_SENSORS", "utilization=97,97,!999;power=1;temperature=1;clock=1;throttle=0;energy=1");
  const auto monitor = watched(10);
  EXPECT_EQ(log, "unknown figures of the GPU from now on: utilization (an error)\n");
  EXPECT_FALSE(monitor->utilization());
  EXPECT_EQ(monitor->take().utilization, 97) << "of the readings that knew it";
}

TEST_F(GpuMonitorTest, EndsWithALostGpu) {
  set("FAKE_SENSORS", "utilization=97,!15;power=1,!15;temperature=1,!15;clock=1,!15;throttle=0,!15;energy=0,!15");
  const auto monitor = watched(2);
  EXPECT_EQ(log, "warning: the GPU's figures end here: NVML reports the GPU as lost\n");
  EXPECT_EQ(monitor->totals().num_readings, 2);
  EXPECT_FALSE(monitor->utilization());
}

TEST_F(GpuMonitorTest, WithoutTheLibraryOrTheGpuNothingIsKnown) {
  EXPECT_FALSE(watched(0, kUuid, "no-such-library.so.1")->take().utilization);
  EXPECT_TRUE(log.starts_with("the GPU's figures are unknown: no-such-library.so.1: cannot open")) << log;
  set("FAKE_NVML_INIT", "18");
  watched(0);
  EXPECT_TRUE(log.ends_with("libnvidia-ml.so.1: Driver/library version mismatch\n")) << log;
  set("FAKE_NVML_INIT", "0");
  watched(0, "GPU-00000000-0000-0000-0000-000000000000");
  EXPECT_TRUE(log.ends_with("libnvidia-ml.so.1: Not Found\n")) << log;
}

TEST_F(GpuMonitorTest, ASliceHasTheTemperatureOfItsGpuAndNoPower) {
  set("FAKE_GPUS", "NVIDIA H100 80GB HBM3 MIG 1g.10gb|9.0|9984|9000|0|");
  set("FAKE_SENSORS", "utilization=97;power=300000;energy=1;temperature=65;clock=1980;throttle=0");
  const auto monitor = watched(2, "MIG-00000000-0000-0000-0000-00000000abc0");
  const GpuFigures figures = monitor->take();
  EXPECT_EQ(figures.temperature_c, 65);
  EXPECT_EQ(figures.clock_mhz, 1980);
  EXPECT_FALSE(figures.power_w || figures.utilization || monitor->totals().energy_wh);
  EXPECT_SAYS(log, "power (only known for the whole GPU, and this is a slice)");
}

TEST_F(GpuMonitorTest, StoppingDoesNotWaitForTheNextReading) {
  set("FAKE_SENSORS", "utilization=97;energy=0,3600000");
  const auto start = std::chrono::steady_clock::now();
  GpuMonitor monitor(kUuid, {FAKE_NVML, std::chrono::hours(1)});
  EXPECT_TRUE(becomes([&] { return monitor.totals().num_readings > 0; }));
  monitor.stop();
  EXPECT_EQ(monitor.totals().num_readings, 2) << "the last one at the end";
  EXPECT_NEAR(monitor.totals().energy_wh.value(), 1, 1e-9);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace lora_train::device
