#include <gtest/gtest.h>

#include "lora_train/config/check.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

TEST(Unbuilt, NothingInTheDefaults) {
  ProfileText files;
  EXPECT_TRUE(unbuilt_features(files.load("").profile).empty());
  EXPECT_NO_THROW(refuse_unbuilt_features(files.load("")));
}

TEST(Unbuilt, EachSettingIsNamedWithWhatToUse) {
  ProfileText files;
  for (const char* text : {"{base_precision: fp32, precision: bf16}", "{base_precision: bf16, precision: fp32}"}) {
    const auto features = unbuilt_features(files.load(text).profile);
    ASSERT_EQ(features.size(), 1u) << text;
    EXPECT_NE(features[0].text.find("not built yet. "), std::string::npos) << features[0].text;
    EXPECT_NE(std::string(text).find(features[0].key), std::string::npos) << features[0].key;
  }
  EXPECT_TRUE(unbuilt_features(files.load("{base_precision: fp32, precision: fp32}").profile).empty());
  EXPECT_TRUE(unbuilt_features(files.load("precision: fp32").profile).empty());
  EXPECT_TRUE(unbuilt_features(files.load("base_precision: nf4").profile).empty());
  EXPECT_EQ(unbuilt_features(files.load("base_precision: fp32").profile).at(0).text,
            "one other than precision is not built yet. Leave base_precision out; it follows precision.");
}

TEST(Unbuilt, ARunRefusesThemWithTheirPlaces) {
  ProfileText files;
  const LoadedProfile loaded = files.load("seed: 1\nbase_precision: fp32\n");
  try {
    refuse_unbuilt_features(loaded);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("profile.yaml:2: base_precision: one other than precision is not built yet."),
              std::string::npos)
        << text;
    EXPECT_EQ(error.exit_code(), ExitCode::kUsage);
  }
}

}  // namespace
}  // namespace lora_train
