#include "lora_train/report/run_times.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lora_train/report/host_memory.h"
#include "run_files.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

/// The clock of a process that began so long ago, stopped.
RunClock stopped_clock(double seconds_ago) {
  return RunClock(RunClock::Clock::now() -
                  std::chrono::duration_cast<RunClock::Clock::duration>(std::chrono::duration<double>(seconds_ago)));
}

TEST(RunTimes, PhasesReadBackByNameInTheirOrder) {
  RunTimes times{{1, 2, 3, 4, 5, 6, 7, 8}, 0.5};
  EXPECT_EQ(times.wall_s(), 36);
  EXPECT_EQ(times[Phase::kTrain], 4);
  const NamedSeconds named = times.named();
  EXPECT_EQ(named.front(), (std::pair<std::string, double>{"data", 1}));
  EXPECT_EQ(named.back(), (std::pair<std::string, double>{"other", 8}));
  EXPECT_EQ(RunTimes::of({named.rbegin(), named.rend()}, 0.5).seconds, times.seconds);
  EXPECT_EQ(RunTimes::of({{"no phase", 9}, {"save", 2}}, {}).wall_s(), 2);
}

TEST(RunTimes, TheRestOfTheWallTimeIsOtherAndAStoppedClockStands) {
  RunClock clock = stopped_clock(100);
  clock.add(Phase::kLoad, 10);
  clock.add(Phase::kTrain, 60);
  clock.stop();
  const double elapsed_s = clock.elapsed_s();
  const RunTimes times = clock.total();
  EXPECT_NEAR(times.wall_s(), elapsed_s, 1e-9);
  EXPECT_NEAR(times[Phase::kOther], elapsed_s - 70, 1e-9);
  EXPECT_EQ(clock.elapsed_s(), elapsed_s);
  EXPECT_EQ(clock.total().wall_s(), times.wall_s());
  EXPECT_FALSE(times.cost_usd);
}

TEST(RunTimes, AResumedRunHasTheSumsOfAllProcesses) {
  RunTimes earlier{.cost_usd = 2};
  earlier[Phase::kTrain] = 40;
  earlier[Phase::kOther] = 10;
  RunClock clock = stopped_clock(7200);
  clock.go_on_from(earlier);
  EXPECT_EQ(clock.total().cost_usd, 2) << "a stop before the price is known";
  clock.set_price(Price{1.5, 2, "profile"});
  clock.add(Phase::kTrain, 3600);
  clock.stop();
  const RunTimes times = clock.total();
  EXPECT_NEAR(times.wall_s(), 50 + clock.elapsed_s(), 1e-9);
  EXPECT_EQ(times[Phase::kTrain], 3640);
  EXPECT_EQ(clock.here(Phase::kTrain), 3600);
  EXPECT_NEAR(*times.cost_usd, 2 + 3 * clock.elapsed_s() / 3600, 1e-9);  // the earlier part at its own price
  earlier = {};
  earlier[Phase::kTrain] = 3600;
  RunClock later = stopped_clock(1);
  later.go_on_from(earlier);
  later.stop();
  EXPECT_FALSE(later.total().cost_usd);
  later.set_price(Price{4, 1, "GPU table"});
  EXPECT_NEAR(*later.total().cost_usd, 4 + 4 * later.elapsed_s() / 3600, 1e-9);
  clock.set_price({});
  EXPECT_FALSE(clock.total().cost_usd) << "this part has none";
}

TEST(RunTimes, WhatIsUsedAddsUpOverProcessesThatSayIt) {
  RunTimes earlier{.usage = {.cpu_s = 10, .energy_wh = 100, .gpu_watched_s = 30, .gpu_busy_s = 15}};
  earlier[Phase::kTrain] = 40;
  RunClock clock;
  clock.go_on_from(earlier);
  Usage here{.cpu_s = 5, .energy_wh = 20, .gpu_watched_s = 10, .gpu_busy_s = 10};
  clock.set_usage([&here] { return here; });
  EXPECT_EQ(clock.total().usage.cpu_s, 15);
  EXPECT_EQ(clock.total().usage.energy_wh, 120);
  EXPECT_EQ(clock.total().usage.mean_gpu_utilization(), 62.5);
  clock.stop();
  here.cpu_s = 50;
  EXPECT_EQ(clock.total().usage.cpu_s, 15) << "a stopped clock asks nobody";
  RunTimes silent{.usage = {.energy_wh = 100}};
  RunClock other;
  other.go_on_from(silent);
  EXPECT_TRUE(other.total().usage.cpu_s) << "no time has gone before";
  silent[Phase::kTrain] = 40;
  other.go_on_from(silent);
  EXPECT_FALSE(other.total().usage.cpu_s);
  EXPECT_FALSE(other.total().usage.energy_wh) << "this process has no GPU";
  EXPECT_FALSE(other.total().usage.mean_gpu_utilization());
}

TEST(RunTimes, ProcessorTimeIsThatOfAllThreads) {
  const double before = process_usage().cpu_s.value();
  std::thread([] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < end) {
    }
  }).join();
  EXPECT_GT(process_usage().cpu_s.value(), before + 0.005);
}

TEST(RunTimes, NeighboursInOnePhaseAreOneSpan) {
  RunClock clock = stopped_clock(10);
  clock.add(Phase::kTrain, 2);
  clock.add(Phase::kTrain, 0);
  clock.add(Phase::kSave, 1);
  const std::vector<Span> spans = clock.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].phase, Phase::kTrain);
  EXPECT_GE(spans[0].to_s - spans[0].from_s, 2);
  EXPECT_EQ(spans[1].phase, Phase::kSave);
  EXPECT_NEAR(spans[1].to_s - spans[1].from_s, 1, 1e-9);
  EXPECT_TRUE(clock.take_spans().empty());
}

TEST(RunTimes, APriceSaysWhereItComesFrom) {
  EXPECT_EQ((Price{3.5, 1, "profile"}.in_words()), "$3.50 an hour (profile)");
  EXPECT_EQ((Price{2.1, 8, "GPU table"}.in_words()), "8 x $2.10 an hour (GPU table)");
  EXPECT_EQ((Price{2, 8, "GPU table"}.per_hour()), 16);
  EXPECT_EQ(format_dollars(0.00421), "$0.0042");
  EXPECT_EQ(format_dollars(0), "$0.00");
  EXPECT_EQ(format_dollars(123.4), "$123");
}

TEST(RunTimes, TheLastEndUpToAStepCounts) {
  const testing_support::TemporaryFolder folder;
  const auto file = folder / "metrics.jsonl";
  EXPECT_FALSE(logged_times(file, 4));
  write_text(file, start_line(0) + train_line(1, 1, 1));
  EXPECT_FALSE(logged_times(file, 4));  // of an earlier build
  write_text(file, R"({"event":"start","step":0,"phases_s":{"load":1},"cost_usd":null}
{"event":"end","step":4,"phases_s":{"train":3,"other":1},"cost_usd":0.25,"cpu_s":7,"energy_wh":1.5,"gpu_watched_s":4,"gpu_busy_s":3}
{"event":"end","step":6,"phases_s":{"train":9},"cost_usd":null}
{"event":"tr)");
  EXPECT_FALSE(logged_times(file, 3)) << "the start of a process that may have been killed";
  EXPECT_EQ(logged_times(file, 4)->wall_s(), 4);
  const RunTimes of_5 = logged_times(file, 5).value();
  EXPECT_EQ(std::tuple(of_5.cost_usd, of_5.usage.cpu_s, of_5.usage.energy_wh, of_5.usage.mean_gpu_utilization()),
            std::tuple(0.25, 7, 1.5, 75));
  EXPECT_FALSE(logged_times(file, 6)->usage.cpu_s) << "an older version did not say";
  EXPECT_EQ(logged_times(file, 6)->wall_s(), 9);
}

TEST(HostMemory, PeakGrowsWithTouchedPagesAndStays) {
  const double before = peak_host_memory_gib();
  ASSERT_GT(before, 0);
  constexpr std::size_t kBytes = std::size_t{1} << 26;
  {
    std::vector<char> block(kBytes, 'x');
    ASSERT_EQ(block[kBytes / 2], 'x');
  }
  EXPECT_GT(peak_host_memory_gib(), before + 0.05);
  EXPECT_LT(peak_host_memory_gib(), before + 0.2);
  EXPECT_GT(host_memory_gib(), 0.001);
  EXPECT_LE(host_memory_gib(), peak_host_memory_gib() + 0.001);
}

TEST(HostMemory, AvailableIsWhatTheMachineAndEveryControlGroupAboveLeave) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  using Files = std::vector<std::pair<std::string, std::string>>;
  const std::string v1 = "sys/fs/cgroup/memory/", v2 = "sys/fs/cgroup/", no_limit = "9223372036854771712";
  const auto group = [&](const std::string& folder, std::int64_t limit, std::int64_t used, std::int64_t cached) {
    const bool is_1 = folder.starts_with(v1);
    const std::string prefix = is_1 ? "total_" : "",
                      other = "active_file 99999999999999\n";  // of version 1's own pages
    return Files{
        {folder + (is_1 ? "memory.limit_in_bytes" : "memory.max"), std::to_string(limit * kMiB)},
        {folder + (is_1 ? "memory.usage_in_bytes" : "memory.current"), std::to_string(used * kMiB)},
        {folder + "memory.stat", fmt::format("{}anon 5\n{}inactive_file {}\n{}active_file {}\n", is_1 ? other : "",
                                             prefix, cached * kMiB / 2, prefix, cached * kMiB / 2)}};
  };
  struct Case {
    const char* what;
    std::string cgroup;
    std::vector<Files> files;
    std::int64_t expected;
  };
  const Case cases[] = {
      {"no group", "0::/\n", {}, 1000},
      {"version 2", "0::/job/step\n", {group(v2 + "job/step/", 600, 200, 0)}, 400},
      {"a parent allows less",
       "0::/job/step\n",
       {group(v2 + "job/step/", 600, 200, 0), group(v2 + "job/", 500, 300, 0)},
       200},
      {"cached pages are free", "0::/job\n", {group(v2 + "job/", 600, 500, 300)}, 400},
      {"without a limit", "0::/job\n", {{{v2 + "job/memory.max", "max"}, {v2 + "job/memory.current", "7"}}}, 1000},
      {"more used than allowed", "0::/job\n", {group(v2 + "job/", 100, 200, 0)}, 0},
      {"version 1", "4:cpu,memory:/job\n0::/\n", {group(v1 + "job/", 600, 500, 300)}, 400},
      {"version 1, a parent", "4:memory:/a/b\n", {group(v1 + "a/b/", 900, 0, 0), group(v1 + "a/", 300, 100, 20)}, 220},
      {"version 1, a container sees the uppermost", "4:memory:/docker/1\n", {group(v1, 500, 100, 0)}, 400},
      {"version 1, without a limit", "4:memory:/job\n", {{{v1 + "job/memory.limit_in_bytes", no_limit}}}, 1000},
      {"the machine has less", "0::/job\n", {group(v2 + "job/", 5000, 0, 0)}, 1000}};
  for (const auto& [what, cgroup, groups, expected] : cases) {
    const testing_support::TemporaryFolder root;
    const auto write = [&](const std::string& name, const std::string& text) {
      std::filesystem::create_directories((root / name).parent_path());
      std::ofstream(root / name) << text;
    };
    write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 1024000 kB\n");
    write("proc/self/cgroup", cgroup);
    for (const Files& files : groups) {
      for (const auto& [name, text] : files) write(name, text);
    }
    EXPECT_EQ(available_host_memory(root.path()), expected * kMiB) << what;
  }
}

}  // namespace
}  // namespace lora_train::report
