#include "lora_train/kernels/launch/graph.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "lora_train/base/error.h"
#include "support/cuda_device.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

const auto kOnGpu = at::TensorOptions(at::kFloat).device(at::kCUDA);

int64_t unused_given_back() {
  at::getDeviceAllocator(at::kCUDA)->emptyCache();
  return at::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).reserved_bytes[0].current;
}

/// Takes 64 MiB of temporary memory, as a part of a step does, and then goes wrong.
void take_memory_and(const std::function<void()>& go_wrong) {
  at::empty({16 << 20}, kOnGpu).zero_();
  go_wrong();
}

class CudaGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
    x_ = at::zeros({4}, kOnGpu);
    reserved_ = unused_given_back();
  }

  std::function<void()> waiting_for_the_device() const {
    return [x = x_] { take_memory_and([&] { x.cpu(); }); };
  }

  /// What a run needs that goes on without graphs.
  void expect_as_before() const {
    EXPECT_FALSE(is_capturing());
    EXPECT_EQ(unused_given_back(), reserved_);
    const at::Tensor numbers = at::empty({4}, kOnGpu).normal_();
    EXPECT_EQ(numbers.cpu().numel(), 4);
    capture([&] { x_.add_(1); })->replay();
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0);
  }

 private:
  at::Tensor x_;
  int64_t reserved_ = 0;
};

TEST_F(CudaGraph, GivesItsMemoryBack) {
  {
    const auto graph = capture([] { take_memory_and([] {}); });
    graph->replay();
  }
  expect_as_before();
}

TEST_F(CudaGraph, ThatBreaksLeavesNothingBehind) {
  EXPECT_THROW(capture(waiting_for_the_device()), DeviceError);
  expect_as_before();
}

TEST_F(CudaGraph, WhoseBodyThrowsLeavesNothingBehind) {
  EXPECT_THROW(capture([] { take_memory_and([] { throw std::runtime_error("of the body"); }); }), std::runtime_error);
  expect_as_before();
}

TEST_F(CudaGraph, ThatBreaksAfterOthersLeavesThem) {
  const auto graph = capture([] { take_memory_and([] {}); });
  const int64_t with_graph = unused_given_back();
  EXPECT_THROW(capture(waiting_for_the_device()), DeviceError);
  EXPECT_EQ(unused_given_back(), with_graph);
  graph->replay();
}

}  // namespace
}  // namespace lora_train::kernels
