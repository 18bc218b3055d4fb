#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "support/temporary_folder.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

const CudaLibrary& library() {
  const CudaFolders folders = default_cuda_folders();
  return load_cuda_library(folders.library, folders.torch);
}

std::string refusal(const std::filesystem::path& folder, const std::filesystem::path& torch) {
  try {
    load_cuda_library(folder, torch);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "none";
}

// First: later tests of this process find the library loaded.
TEST(CudaLibrary, SaysWhatIsMissing) {
  if (cuda_library() != nullptr) GTEST_SKIP() << "loaded by a test before";
  const TemporaryFolder empty;
  const std::string without_torch = refusal(default_cuda_folders().library, empty.path());
  EXPECT_NE(without_torch.find("libc10_cuda.so: is missing"), std::string::npos) << without_torch;
  EXPECT_NE(without_torch.find("pip install"), std::string::npos) << without_torch;
  const std::string without_library = refusal(empty.path(), default_cuda_folders().torch);
  EXPECT_NE(without_library.find("liblora_train_cuda.so: is missing"), std::string::npos) << without_library;
  EXPECT_NE(without_library.find("device: cpu"), std::string::npos) << without_library;
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

TEST(CudaLibrary, DoesNotStartOnADeviceThatIsNotThere) {
  const CudaLibrary& cuda = library();
  EXPECT_THROW(start_cuda({.device = cuda.num_devices()}), DeviceError);
  EXPECT_THROW(start_cuda({.device = -1}), DeviceError);
}

TEST(CudaLibrary, GemmBeforeTheStartIsRefused) { EXPECT_THROW(library().gemm({}), DeviceError); }

}  // namespace
}  // namespace lora_train::kernels
