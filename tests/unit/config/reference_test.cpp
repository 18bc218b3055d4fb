#include "lora_train/config/keys/reference.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "lora_train/base/file.h"
#include "lora_train/config/load.h"
#include "support/temporary_folder.h"
#include "unit/config/profile_page.h"

namespace lora_train {
namespace {

// Runs in the root of the repository. scripts/make_profile_docs.sh sets the variable.
TEST(Reference, CommittedDocumentationIsTheGeneratedOne) {
  if (std::getenv("LORA_TRAIN_UPDATE_DOCS")) write_file_atomic("docs/profile.md", profile_page());
  EXPECT_TRUE(read_file("docs/profile.md") == profile_page())
      << "docs/profile.md is not what src/config says. Run scripts/make_profile_docs.sh.";
}

TEST(Reference, DocumentationNamesEveryKeyOnce) {
  const std::string text = profile_page();
  ASSERT_GT(profile_keys().size(), 70u);
  for (const auto& key : profile_keys()) {
    const std::size_t row = text.find("\n| `" + key + "` | ");
    ASSERT_NE(row, std::string::npos) << key;
    EXPECT_EQ(text.find("\n| `" + key + "` | ", row + 1), std::string::npos) << key;
  }
}

TEST(Reference, KeysTableTakesAFilter) {
  EXPECT_NE(keys_table().find("\n  learning_rate (default 0.0002): number > 0\n"), std::string::npos);
  const std::string some = keys_table("warmup");
  EXPECT_NE(some.find("warmup_ratio"), std::string::npos);
  EXPECT_EQ(some.find("lora_r ("), std::string::npos);
  EXPECT_EQ(keys_table("no such key"), "");
}

TEST(Reference, SchemaHasEveryNameThatALoaderTakes) {
  const std::string schema = profile_schema();
  for (const auto& key : profile_keys()) EXPECT_NE(schema.find("\"" + key + "\": {"), std::string::npos) << key;
  EXPECT_NE(schema.find("\"per_device_train_batch_size\": {"), std::string::npos);  // an alias
  EXPECT_EQ(schema.find("\"push_to_hub\": {"), std::string::npos);                  // refused
  EXPECT_NE(schema.find("\"enum\": [null, \"auto\", \"cuda\", \"cpu\"]"), std::string::npos);
}

TEST(Reference, ShippedProfilesAreListedByNameWithTheirFirstLine) {
  const testing_support::TemporaryFolder folder;
  std::ofstream(folder / "b.yaml") << "# says b\nseed: 1\n";
  std::ofstream(folder / "a.yaml") << "seed: 1\n";
  std::ofstream(folder / "a.json") << "{}";
  const auto profiles = shipped_profiles(folder.path());
  ASSERT_EQ(profiles.size(), 2u);
  EXPECT_EQ(profiles[0].name, "a");
  EXPECT_EQ(profiles[0].summary, "");
  EXPECT_EQ(profiles[1].summary, "says b");
  EXPECT_TRUE(shipped_profiles(folder / "nowhere").empty());
}

}  // namespace
}  // namespace lora_train
