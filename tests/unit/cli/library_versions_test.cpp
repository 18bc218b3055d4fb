#include <gtest/gtest.h>

#include "output/doctor_report.h"

namespace lora_train::cli {
namespace {

TEST(LibraryVersions, CountAsTheLibrariesDo) {
  EXPECT_EQ(version_of_number(22809), "2.28.9");
  EXPECT_EQ(version_of_number(91900), "9.19.0");
  EXPECT_EQ(version_of_number(130100), "13.1.0");
}

TEST(LibraryVersions, AreThoseOfTheWheelsBesideTorch) {
  const TorchInstallation torch = read_torch_folder(LORA_TRAIN_TORCH_DIR, "test");
  if (torch.cuda.empty()) GTEST_SKIP() << "a CPU build of torch";
  const auto versions = library_versions(torch);
  ASSERT_EQ(versions.size(), 3u);
  const char* const names[] = {"NCCL", "cuDNN", "cuBLASLt"};
  const char* const series[] = {"2.", "9.", "13."};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(versions[i].name, names[i]);
    EXPECT_TRUE(versions[i].version.starts_with(series[i])) << versions[i].version << versions[i].problem;
  }
}

TEST(LibraryVersions, CpuBuildOfTorchNeedsNone) {
  EXPECT_TRUE(library_versions({"/nowhere/torch", "2.11.0+cpu", "", "test"}).empty());
}

TEST(LibraryVersions, MissingLibraryIsNamed) {
  for (const auto& library : library_versions({"/nowhere/torch", "2.11.0+cu990", "99.0", "test"})) {
    if (library.name != "cuBLASLt") continue;  // the others are of one series whatever CUDA is
    EXPECT_EQ(library.version, "");
    EXPECT_NE(library.problem.find("libcublasLt.so.99"), std::string::npos) << library.problem;
    return;
  }
  FAIL();
}

}  // namespace
}  // namespace lora_train::cli
