#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/own_arguments.h"

namespace lora_train::kernels {
namespace {

TEST(Workspace, IsOneBufferThatGrowsWhenMoreIsWanted) {
  use_own_kernels({&linked_own_kernels(), nullptr, true});
  reserve_own_workspace(1000, at::kCPU);
  float* const first = own_workspace(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 16, 0u);
  EXPECT_EQ(own_workspace(1), first);
  reserve_own_workspace(500, at::kCPU);
  EXPECT_EQ(own_workspace(1000), first) << "reserving less must not take memory away";
  constexpr std::int64_t kMore = 3 * 1000 * 1000;
  float* const more = own_workspace(kMore);
  std::fill(more, more + kMore, 1.0F);  // a sanitizer sees what is not there
  EXPECT_EQ(own_workspace(1000), more);
  use_own_kernels({});
}

}  // namespace
}  // namespace lora_train::kernels
