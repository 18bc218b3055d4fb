#include "lora_train/report/host_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace lora_train::report {
namespace {

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
}

TEST(HostMemory, WhatIsHeldIsAtMostThePeak) {
  EXPECT_GT(host_memory_gib(), 0.001);
  EXPECT_LE(host_memory_gib(), peak_host_memory_gib() + 0.001);
}

}  // namespace
}  // namespace lora_train::report
