#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/launch/graph.h"
#include "support/cuda_device.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

const CudaLibrary& library() {
  const CudaFolders folders = default_cuda_folders();
  return load_cuda_library(folders.library, folders.torch);
}

std::string refusal(const std::filesystem::path& folder, const std::filesystem::path& torch) {
  return testing_support::refusal<DeviceError>([&] { load_cuda_library(folder, torch); });
}

// First: later tests of this process find the library loaded.
TEST(CudaLibrary, SaysWhatIsMissing) {
  if (cuda_library() != nullptr) GTEST_SKIP() << "loaded by a test before";
  const TemporaryFolder empty;
  const std::string without_torch = refusal(default_cuda_folders().library, empty.path());
  EXPECT_SAYS(without_torch, "libc10_cuda.so: is missing");
  EXPECT_SAYS(without_torch, "pip install");
  const std::string without_library = refusal(empty.path(), default_cuda_folders().torch);
  EXPECT_SAYS(without_library, "liblora_train_cuda.so: is missing");
  EXPECT_SAYS(without_library, "device: cpu");
  EXPECT_EQ(cuda_library(), nullptr);
  EXPECT_THROW(start_cuda({}), DeviceError);
}

TEST(CudaLibrary, LoadsAndNamesItsVersions) {
  const CudaLibrary& cuda = library();
  EXPECT_EQ(cuda_library(), &cuda);
  const CudaVersions versions = cuda.versions();
  EXPECT_EQ(versions.runtime / 1000, 13);
  EXPECT_EQ(versions.cublas_lt / 10000, 13);
  EXPECT_EQ(versions.cudnn / 10000, 9);
  EXPECT_GE(versions.cudnn, 91900);
  EXPECT_NE(cuda.native_kernels, nullptr);
}

TEST(CudaLibrary, TorchHasCudaExactlyWhereThereIsADevice) {
  const CudaLibrary& cuda = library();
  EXPECT_EQ(at::hasCUDA(), cuda.num_devices() > 0);
  if (cuda.num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  const CudaDevice device = cuda.device(0);
  EXPECT_FALSE(device.name.empty());
  EXPECT_GE(device.major, 7);
  EXPECT_GT(device.total_bytes, int64_t{1} << 30);
}

TEST(CudaLibrary, DoesNotStartOnADeviceThatIsNotThereNorMultiplyBeforeTheStart) {
  const CudaLibrary& cuda = library();
  EXPECT_THROW(start_cuda({.device = cuda.num_devices()}), DeviceError);
  EXPECT_THROW(start_cuda({.device = -1}), DeviceError);
  EXPECT_THROW(library().gemm({}), DeviceError);
}

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

TEST_F(CudaGraph, ThatBreaksOrWhoseBodyThrowsLeavesNothingBehind) {
  EXPECT_THROW(capture(waiting_for_the_device()), DeviceError);
  expect_as_before();
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
