#include <gtest/gtest.h>

#include "lora_train/device/gpu.h"

namespace lora_train::device {
namespace {

const std::vector<CudaArchitecture> kBuilt = {{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {12, 0}, {12, 0, true}};

// Every preset has these; cmake/cuda_architectures.txt has more.
TEST(CudaBuild, HasMachineCodeForAmpereAndHopperAndPtxForLater) {
  EXPECT_EQ(built_architectures_text().find("sm_80 "), 0u);
  EXPECT_NE(built_architectures_text().find(" sm_90 "), std::string::npos);
  EXPECT_TRUE(built_architectures().back().is_ptx);
}

TEST(CudaBuild, MachineCodeRunsOnLaterMinorNumbersAndPtxOnLaterOnesOfAnyKind) {
  for (const auto& [major, minor] :
       {std::pair{8, 0}, {8, 6}, {8, 7}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}, {12, 1}}) {
    EXPECT_EQ(code_for(major, minor, kBuilt), CodeFor::kMachineCode) << major << "." << minor;
  }
  for (const auto& [major, minor] : {std::pair{13, 0}, {20, 5}}) {
    EXPECT_EQ(code_for(major, minor, kBuilt), CodeFor::kPtx) << major << "." << minor;
  }
  for (const auto& [major, minor] : {std::pair{3, 5}, {6, 1}, {7, 0}, {7, 5}, {11, 0}}) {
    EXPECT_EQ(code_for(major, minor, kBuilt), CodeFor::kNone) << major << "." << minor;
  }
}

TEST(CudaBuild, LibraryLiesBesideTheProgram) {
  EXPECT_EQ(cuda_library_file(),
            std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lib/liblora_train_cuda.so");
}

}  // namespace
}  // namespace lora_train::device
