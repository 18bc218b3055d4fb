#include <gtest/gtest.h>

#include <fstream>

#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "support/environment.h"
#include "support/expect_refused.h"
#include "support/temporary_folder.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

// A folder that looks like a torch wheel of this version.
fs::path make_torch(const fs::path& folder, const std::string& version, const std::string& cuda = "'13.0'") {
  fs::create_directories(folder / "lib");
  std::ofstream(folder / "lib" / "libtorch_cpu.so") << "not a library";
  std::ofstream(folder / "version.py") << "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda']\n"
                                       << "__version__ = '" << version
                                       << "'\ndebug = False\ncuda: Optional[str] = " << cuda
                                       << "\nhip: Optional[str] = None\n";
  return folder;
}

TEST(FindTorch, ReadsVersionAndCudaOfAWheelAndRefusesAFolderWithoutOne) {
  const TemporaryFolder folder;
  const fs::path torch = make_torch(folder / "torch", "2.11.0+cu130");
  for (const fs::path& given : {torch, torch / "lib", torch / ""}) {
    const TorchInstallation found = read_torch_folder(given, "test");
    EXPECT_EQ(found.folder, torch) << given;
    EXPECT_EQ(found.version, "2.11.0+cu130");
    EXPECT_EQ(found.cuda, "13.0");
  }
  EXPECT_EQ(read_torch_folder(make_torch(folder / "cpu", "2.11.0+cpu", "None"), "test").cuda, "");
  EXPECT_THROW(read_torch_folder(folder.path(), "test"), ConfigError);
  EXPECT_THROW(read_torch_folder(folder / "missing", "test"), ConfigError);
}

TEST(FindTorch, VariableDecidesAloneAndTheVersionIsChecked) {
  const TemporaryFolder folder;
  testing_support::ScopedEnvironment environment;
  environment.set("LORA_TRAIN_TORCH", make_torch(folder / "torch", "2.11.3").string());
  EXPECT_EQ(find_torch().version, "2.11.3");
  EXPECT_EQ(find_torch().found_by, "$LORA_TRAIN_TORCH");
  environment.set("LORA_TRAIN_TORCH", make_torch(folder / "old", "2.1.10").string());
  testing_support::expect_refused([] { find_torch(); }, "",
                                  {"torch 2.1.10 in " + (folder / "old").string(), "pip install torch==2.11.0"},
                                  ExitCode::kUsage);
}

}  // namespace
}  // namespace lora_train::cli
