#include "lora_train/model/weights/trainables.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/base/error.h"

namespace lora_train::model {
namespace {

using Blocks = std::vector<kernels::ParameterBlock>;

std::vector<std::string> names_of(const Trainables& parameters) {
  std::vector<std::string> names;
  for (const auto& parameter : parameters.list()) names.push_back(parameter.name);
  return names;
}

TEST(Trainables, DecayedComeFirstInTheGivenOrder) {
  const Trainables parameters({{"norm", {3}, false}, {"w", {2, 2}, true}, {"bias", {2}, false}, {"v", {1, 2}, true}});
  EXPECT_EQ(parameters.size(), 11);
  EXPECT_EQ(parameters.blocks(), (Blocks{{0, 4}, {4, 2}, {6, 3, 1.0, false}, {9, 2, 1.0, false}}));
  EXPECT_EQ(names_of(parameters), (std::vector<std::string>{"w", "v", "norm", "bias"}));
  EXPECT_EQ(parameters.value("bias").sizes(), (std::vector<int64_t>{2}));
}

TEST(Trainables, OtherRatesFollowAsTheyFirstAppear) {
  const Trainables parameters(
      {{"b0", {2}, true, 16.0}, {"a0", {3}}, {"x", {1}, false, 16.0}, {"b1", {4}, true, 16.0}, {"a1", {5}}});
  EXPECT_EQ(parameters.blocks(), (Blocks{{0, 3}, {3, 5}, {8, 2, 16.0}, {10, 4, 16.0}, {14, 1, 16.0, false}}));
  EXPECT_EQ(kernels::merged(parameters.blocks()), (Blocks{{0, 8}, {8, 6, 16.0}, {14, 1, 16.0, false}}));
  EXPECT_EQ(names_of(parameters), (std::vector<std::string>{"a0", "a1", "b0", "b1", "x"}));
  EXPECT_EQ(parameters.list()[3].offset, 10);
}

TEST(Trainables, BytesAreThoseOfValuesAndGradients) {
  const Trainables parameters({{"w", {2, 2}}, {"bias", {3}, false}});
  EXPECT_EQ(static_cast<std::size_t>(Trainables::bytes(7)), parameters.values.nbytes() + parameters.grads.nbytes());
}

TEST(Trainables, AHostCopyHasMemoryOfItsOwn) {
  const Trainables live({{"w", {2, 2}}});
  const Trainables copy = live.host_copy();
  at::Tensor(live.values).fill_(5);
  EXPECT_EQ(copy.value("w")[0][0].item<float>(), 0);
  EXPECT_FALSE(copy.grads.defined());
}

TEST(Trainables, ViewsShareTheFlatBuffer) {
  Trainables parameters({{"w", {2, 2}, true}, {"v", {1, 2}, true}});
  parameters.value("v").fill_(5);
  EXPECT_EQ(parameters.values[4].item<float>(), 5);
  const at::Tensor both = parameters.joined(parameters.values, {"w", "v"});
  EXPECT_EQ(both.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(both[2][1].item<float>(), 5);
}

TEST(Trainables, RefusesWhatIsNotThereOrNotAdjacent) {
  Trainables parameters({{"a", {2}, true}, {"b", {2}, true}, {"c", {2}, true}});
  EXPECT_THROW((void)parameters.value("d"), ShapeError);
  EXPECT_THROW((void)parameters.joined(parameters.values, {"a", "c"}), ShapeError);
  EXPECT_THROW(Trainables({{"a", {1}, true}, {"a", {1}, true}}), ShapeError);
  for (const double factor : std::vector<double>{0.0, -1.0, NAN})
    EXPECT_THROW(Trainables({{"a", {1}, true, factor}}), ShapeError);
}

}  // namespace
}  // namespace lora_train::model
