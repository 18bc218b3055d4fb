#include "lora_train/device/host.h"

#include <gtest/gtest.h>

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
}

TEST(Host, WithoutProcNothingIsClaimed) {
  const Host host = describe_host("/nonexistent");
  EXPECT_EQ(host.cpu_model, "");
  EXPECT_TRUE(host.vector_units.empty());
  EXPECT_EQ(host.memory_bytes, 0u);
}

}  // namespace
}  // namespace lora_train::device
