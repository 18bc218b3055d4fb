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
       {"base_precision: nf4", "base_precision: int8", "base_precision: fp8", "optim: adamw_8bit", "add_tokens: [a]",
        "{base_precision: fp32, precision: bf16}", "{base_precision: bf16, precision: fp32}",
        "metric_for_best_model: eval_accuracy", "{load_best_model_at_end: true, val_set_size: 0.1}",
        "{early_stopping_patience: 1, val_set_size: 0.1}"}) {
    const auto lines = unbuilt_features(files.load(text).profile);
    ASSERT_EQ(lines.size(), 1u) << text;
    EXPECT_NE(lines[0].find(" is not supported yet. "), std::string::npos) << lines[0];
  }
  EXPECT_TRUE(unbuilt_features(files.load("{base_precision: fp32, precision: fp32}").profile).empty());
  EXPECT_TRUE(unbuilt_features(files.load("precision: fp32").profile).empty());
  EXPECT_EQ(unbuilt_features(files.load("base_precision: nf4").profile).at(0),
            "base_precision: nf4 is not supported yet. Use base_precision: bf16 or fp32.");
}

TEST(Unbuilt, ARunRefusesThemTogetherWithTheirPlaces) {
  ProfileText files;
  const LoadedProfile loaded = files.load("optim: adamw_8bit\nbase_precision: nf4\n");
  try {
    refuse_unbuilt_features(loaded);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("profile.yaml:2: base_precision: nf4 is not supported yet."), std::string::npos) << text;
    EXPECT_NE(text.find("profile.yaml:1: optim: adamw_8bit is not supported yet."), std::string::npos) << text;
    EXPECT_EQ(error.exit_code(), ExitCode::kUsage);
  }
}

}  // namespace
}  // namespace lora_train
