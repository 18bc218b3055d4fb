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
  for (const char* text :
       {"add_tokens: [a]", "{base_precision: fp32, precision: bf16}", "{base_precision: bf16, precision: fp32}"}) {
    const auto lines = unbuilt_features(files.load(text).profile);
    ASSERT_EQ(lines.size(), 1u) << text;
    EXPECT_NE(lines[0].find(" is not supported yet. "), std::string::npos) << lines[0];
  }
  EXPECT_TRUE(unbuilt_features(files.load("{base_precision: fp32, precision: fp32}").profile).empty());
  EXPECT_TRUE(unbuilt_features(files.load("precision: fp32").profile).empty());
  EXPECT_TRUE(unbuilt_features(files.load("base_precision: nf4").profile).empty());
  EXPECT_EQ(unbuilt_features(files.load("add_tokens: [a]").profile).at(0),
            "add_tokens is not supported yet. Add the tokens to the tokenizer and the model beforehand.");
}

TEST(Unbuilt, ARunRefusesThemTogetherWithTheirPlaces) {
  ProfileText files;
  const LoadedProfile loaded = files.load("add_tokens: [a]\nbase_precision: fp32\n");
  try {
    refuse_unbuilt_features(loaded);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("profile.yaml:2: base_precision other than precision is not supported yet."), std::string::npos)
        << text;
    EXPECT_NE(text.find("profile.yaml:1: add_tokens is not supported yet."), std::string::npos) << text;
    EXPECT_EQ(error.exit_code(), ExitCode::kUsage);
  }
}

}  // namespace
}  // namespace lora_train
