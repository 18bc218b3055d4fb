#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dispatch/arguments.h"
#include "kernels/cuda/cudnn_plans.h"

namespace lora_train::kernels {
namespace {

TEST(Workspace, IsOneBufferThatGrowsWhenMoreIsWanted) {
  use_native_kernels({&linked_native_kernels(), nullptr, true});
  reserve_native_workspace(1000, at::kCPU);
  float* const first = native_workspace(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 16, 0u);
  EXPECT_EQ(native_workspace(1), first);
  reserve_native_workspace(500, at::kCPU);
  EXPECT_EQ(native_workspace(1000), first) << "reserving less must not take memory away";
  constexpr std::int64_t kMore = 3 * 1000 * 1000;
  float* const more = native_workspace(kMore);
  std::fill(more, more + kMore, 1.0F);  // a sanitizer sees what is not there
  EXPECT_EQ(native_workspace(1000), more);
  use_native_kernels({});
}

TEST(GrowingWorkspace, KeepsWhatACapturedGraphUses) {
  cuda::GrowingWorkspace memory;
  void* const first = memory.at_least(64, at::kCPU, false);
  EXPECT_EQ(memory.at_least(32, at::kCPU, false), first);
  memory.at_least(128, at::kCPU, false);
  EXPECT_EQ(memory.num_kept(), 0u) << "nothing uses it any more";
  auto* const recorded = static_cast<char*>(memory.at_least(128, at::kCPU, true));
  memory.at_least(64, at::kCPU, false);  // evaluation, in the same memory
  EXPECT_NE(memory.at_least(4096, at::kCPU, false), recorded);
  EXPECT_EQ(memory.num_kept(), 1u);
  std::fill(recorded, recorded + 128, char{1});  // a replay; a sanitizer sees what is not there
  memory.at_least(8192, at::kCPU, false);
  EXPECT_EQ(memory.num_kept(), 1u);
}

}  // namespace
}  // namespace lora_train::kernels
