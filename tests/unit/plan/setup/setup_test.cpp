#include "lora_train/plan/setup/setup.h"

#include <gtest/gtest.h>

namespace lora_train::plan {
namespace {

TEST(IgnoredDoubleQuant, IsNamedWhereTheFolderStoresItsScalesOtherwise) {
  lora::ModelFiles files;
  files.resolved.folder = "models/m";
  Profile profile;
  const auto say = [&](bool requested, bool is_stored_nested) {
    profile.model.double_quant = requested;
    files.base["q_proj"] = model::quantised_storage(model::LinearFormat::k4Bit, 64, 64, is_stored_nested);
    return ignored_double_quant(profile, files);
  };
  EXPECT_EQ(say(true, false), "") << "the key is not given";
  profile.given_keys = {"double_quant"};
  EXPECT_EQ(say(true, true), "");
  EXPECT_EQ(say(false, false), "");
  EXPECT_EQ(say(true, false),
            "double_quant: true has no effect: models/m is already quantised, with scales in fp32, and stays that way");
  EXPECT_EQ(
      say(false, true),
      "double_quant: false has no effect: models/m is already quantised, with scales in 8 bits, and stays that way");
  files.base["q_proj"].format = model::LinearFormat::kInt8;
  EXPECT_EQ(ignored_double_quant(profile, files), "");
}

}  // namespace
}  // namespace lora_train::plan
