#include "lora_train/device/host.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"

namespace lora_train::device {
namespace {

TEST(Host, ReadsModelVectorUnitsAndMemory) {
  const testing_support::TemporaryFolder folder;
  std::ofstream(folder / "cpuinfo")
      << "processor\t: 0\nmodel name\t: AMD EPYC 7R32\nflags\t\t: fpu sse avx avx2 amx_bf16_x\n\n"
         "processor\t: 1\nmodel name\t: Another\nflags\t\t: avx512f\n";
  std::ofstream(folder / "meminfo") << "MemTotal:       1024 kB\nMemFree:         512 kB\nHugePages_Total:       0\n";
  const Host host = describe_host(folder.path().string());
  EXPECT_EQ(host.cpu_model, "AMD EPYC 7R32");
  EXPECT_EQ(host.vector_units, (std::vector<std::string>{"avx2"}));
  EXPECT_EQ(host.memory_bytes, 1024u * 1024u);
  EXPECT_GT(host.num_cores, 0);
  EXPECT_GT(host.num_physical_cores, 0);
  EXPECT_LE(host.num_physical_cores, host.num_cores);
}

TEST(Host, WithoutProcNothingIsClaimed) {
  const Host host = describe_host("/nonexistent");
  EXPECT_EQ(host.cpu_model, "");
  EXPECT_TRUE(host.vector_units.empty());
  EXPECT_EQ(host.memory_bytes, 0u);
}

TEST(Host, WithoutSysEachLogicalCoreIsPhysical) {
  const Host host = describe_host("/proc", "/nonexistent");
  EXPECT_EQ(host.num_physical_cores, host.num_cores);
  EXPECT_EQ(host.num_numa_nodes, 1);
}

TEST(CpuTimes, AreThoseOfTheseCoresWithoutIdleTime) {
  const testing_support::TemporaryFolder folder;
  std::ofstream(folder / "stat")
      << ("cpu  999 0 0 0 0 0 0 0 0 0\ncpu0 100 20 30 5000 600 7 3 40 9 9\ncpu1 1 0 0 0 0 0 0 0\n"
          "cpu12 50 0 0 9 9 0 0 0 0 0\nintr 5\n");
  EXPECT_DOUBLE_EQ(cpu_times({0, 12}, folder.path().string()).all, 2.0 + 0.5);
  EXPECT_EQ(cpu_times({0}, "/nonexistent").all, 0);
  EXPECT_GT(cpu_times({0}).own, 0);
}

void write_line(const std::filesystem::path& file, const std::string& line) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << line << "\n";
}

/// Two nodes with memory and four logical cores each, of which n and n + 4 share a physical one; a third without cores.
class TopologyTest : public ::testing::Test {
 protected:
  TopologyTest() {
    for (int cpu = 0; cpu < 8; ++cpu) {
      const std::string siblings = std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4);
      write_line(siblings_file(cpu), siblings);
    }
    write_line(folder_ / "devices/system/node/node0/cpulist", "0-1,4-5");
    write_line(folder_ / "devices/system/node/node1/cpulist", "2-3,6-7");
    write_line(folder_ / "devices/system/node/node2/cpulist", "");
    write_line(folder_ / "devices/system/node/online", "0-2");
  }

  std::filesystem::path siblings_file(int cpu) const {
    return folder_ / ("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  }
  std::string sys() const { return folder_.path().string(); }

  testing_support::TemporaryFolder folder_;
};

TEST_F(TopologyTest, HyperthreadsOfACoreCountOnce) {
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3, 4, 5, 6, 7}, sys()), 4);
  EXPECT_EQ(count_physical_cores({1, 5}, sys()), 1);
  EXPECT_EQ(count_physical_cores({0, 1, 5}, sys()), 2);
  EXPECT_EQ(count_physical_cores({6}, sys()), 1);
}

TEST_F(TopologyTest, CoresOfUnknownTopologyArePhysical) {
  for (const int cpu : {1, 5}) std::filesystem::remove(siblings_file(cpu));
  EXPECT_EQ(count_physical_cores({0, 1, 4, 5}, sys()), 3);
  EXPECT_EQ(count_physical_cores({0, 1, 4, 5}, "/nonexistent"), 4);
}

TEST_F(TopologyTest, NumaNodesCountIfTheirCoresAreUsable) {
  EXPECT_EQ(count_numa_nodes({0, 1, 2, 3, 4, 5, 6, 7}, sys()), 2);
  EXPECT_EQ(count_numa_nodes({3, 4}, sys()), 2);
  EXPECT_EQ(count_numa_nodes({1, 5}, sys()), 1);
  EXPECT_EQ(count_numa_nodes({7}, sys()), 1);
  EXPECT_EQ(count_numa_nodes({0, 7}, "/nonexistent"), 1);
}

}  // namespace
}  // namespace lora_train::device
