#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "lora_train/storage/model_weights.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

using testing_support::TemporaryFolder;

void put(const std::filesystem::path& path, std::size_t bytes) { std::ofstream(path) << std::string(bytes, 'x'); }

TEST(ReadAhead, AsksForAllWeightFilesOfAFolder) {
  const TemporaryFolder folder;
  put(folder / "a.safetensors", (16 << 20) + 5);
  put(folder / "b.safetensors", 7);
  put(folder / "config.json", 100);
  std::filesystem::create_directory(folder / "c.safetensors");
  std::filesystem::create_symlink("gone", folder / "d.safetensors");
  ReadAhead ahead(folder.path(), 1 << 30);
  EXPECT_EQ(ahead.wait(), (16 << 20) + 12);
}

TEST(ReadAhead, LeavesAloneWhatDoesNotFit) {
  const TemporaryFolder folder;
  put(folder / "a.safetensors", 600);
  put(folder / "b.safetensors", 600);
  EXPECT_EQ(ReadAhead(folder.path(), 1199).wait(), 0);
  EXPECT_EQ(ReadAhead(folder.path(), 1200).wait(), 1200);
}

TEST(ReadAhead, AFolderThatIsNotThereIsNoError) { EXPECT_EQ(ReadAhead("/nowhere/at/all", 1 << 30).wait(), 0); }

}  // namespace
}  // namespace lora_train::storage
