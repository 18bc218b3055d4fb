#include "lora_train/model/parameters.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/base/error.h"

namespace lora_train::model {
namespace {

TEST(Parameters, DecayedComeFirstInTheGivenOrder) {
  const Parameters parameters({{"norm", {3}, false, 0}, {"w", {2, 2}, true, 0}, {"bias", {2}, false, 0}, {"v", {1, 2}, true, 0}});
  EXPECT_EQ(parameters.size(), 11);
  EXPECT_EQ(parameters.num_decayed(), 6);
  std::vector<std::string> names;
  for (const auto& parameter : parameters.list()) names.push_back(parameter.name);
  EXPECT_EQ(names, (std::vector<std::string>{"w", "v", "norm", "bias"}));
}

TEST(Parameters, ViewsShareTheFlatBuffer) {
  Parameters parameters({{"w", {2, 2}, true, 0}, {"v", {1, 2}, true, 0}});
  parameters.value("v").fill_(5);
  EXPECT_EQ(parameters.values[4].item<float>(), 5);
  const at::Tensor both = parameters.joined(parameters.values, {"w", "v"});
  EXPECT_EQ(both.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(both[2][1].item<float>(), 5);
}

TEST(Parameters, RefusesWhatIsNotThereOrNotAdjacent) {
  Parameters parameters({{"a", {2}, true, 0}, {"b", {2}, true, 0}, {"c", {2}, true, 0}});
  EXPECT_THROW((void)parameters.value("d"), ShapeError);
  EXPECT_THROW((void)parameters.joined(parameters.values, {"a", "c"}), ShapeError);
  EXPECT_THROW(Parameters({{"a", {1}, true, 0}, {"a", {1}, true, 0}}), ShapeError);
}

}  // namespace
}  // namespace lora_train::model
