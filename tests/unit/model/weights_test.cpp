#include <gtest/gtest.h>

#include <atomic>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/model/weights/trainables.h"
#include "model/weights/weight_reader.h"
#include "support/refusal.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

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

TEST(Trainables, ViewsShareTheFlatBufferAndAHostCopyHasMemoryOfItsOwn) {
  Trainables parameters({{"w", {2, 2}, true}, {"v", {1, 2}, true}});
  EXPECT_EQ(static_cast<std::size_t>(Trainables::bytes(6)), parameters.values.nbytes() + parameters.grads.nbytes());
  const Trainables copy = parameters.host_copy();
  parameters.value("v").fill_(5);
  EXPECT_EQ(parameters.values[4].item<float>(), 5);
  const at::Tensor both = parameters.joined(parameters.values, {"w", "v"});
  EXPECT_EQ(both.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(both[2][1].item<float>(), 5);
  EXPECT_EQ(copy.value("v")[0][0].item<float>(), 0);
  EXPECT_FALSE(copy.grads.defined());
}

TEST(Trainables, RefusesWhatIsNotThereOrNotAdjacent) {
  Trainables parameters({{"a", {2}, true}, {"b", {2}, true}, {"c", {2}, true}});
  EXPECT_THROW((void)parameters.value("d"), ShapeError);
  EXPECT_THROW((void)parameters.joined(parameters.values, {"a", "c"}), ShapeError);
  EXPECT_THROW(Trainables({{"a", {1}, true}, {"a", {1}, true}}), ShapeError);
  for (const double factor : std::vector<double>{0.0, -1.0, NAN})
    EXPECT_THROW(Trainables({{"a", {1}, true, factor}}), ShapeError);
}

using testing_support::TemporaryFolder;
using testing_support::uniform;

/// A folder with tensors of odd sizes in every dtype.
struct Files {
  TemporaryFolder folder;
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  storage::WeightFiles opened = write();

 private:
  storage::WeightFiles write() {
    const std::vector<std::vector<std::int64_t>> shapes{{1}, {37}, {1, 5}, {13, 7}, {64, 33}, {5, 1000}};
    std::vector<storage::TensorToWrite> tensors;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto& shape : shapes) {
        if (type == at::kHalf && shape.size() == 1) continue;
        const at::Tensor value = values.emplace_back(uniform(shape, values.size() + 1, type));
        names.push_back("tensor." + std::to_string(names.size()));
        const auto dtype = type == at::kHalf ? storage::DType::kF16 : storage_dtype(type);
        const std::string_view bytes(static_cast<const char*>(value.data_ptr()), value.nbytes());
        tensors.push_back({names.back(), dtype, shape, bytes, nullptr});
      }
    }
    storage::write_safetensors(folder / "model.safetensors", tensors);
    return storage::open_model_weights(folder.path());
  }
};

/// Rows [1, rows + 1) of a matrix with three more columns, all 99: what is beside the target must stay.
at::Tensor surroundings(const at::Tensor& value, at::ScalarType type) {
  std::vector<std::int64_t> sizes = value.sizes().vec();
  sizes.front() += 2;
  if (sizes.size() > 1) sizes.back() += 3;
  return at::full(sizes, 99, at::TensorOptions(type));
}
at::Tensor inside(const at::Tensor& around, const at::Tensor& value) {
  const at::Tensor rows = around.narrow(0, 1, value.size(0));
  return value.dim() > 1 ? rows.narrow(1, 0, value.size(1)) : rows;
}

class WeightReaderTest : public ::testing::TestWithParam<WeightReaderOptions> {
 protected:
  Files written;
  WeightReader reader{written.opened, at::kCPU, GetParam()};
};

TEST_P(WeightReaderTest, FillsTargetsOfAnyTypeAndStrideAndNothingElse) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> got, expected;
    WeightReader of_type(written.opened, at::kCPU, GetParam());
    for (std::size_t i = written.names.size(); i-- > 0;) {
      got.push_back(surroundings(written.values[i], type));
      expected.push_back(got.back().clone());
      inside(expected.back(), written.values[i]).copy_(written.values[i]);
      of_type.add(written.names[i], inside(got.back(), written.values[i]));
    }
    of_type.read();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i << " " << type;
  }
}

/// Counts how often each row comes, and when the last one has come.
class CountingSink : public RowSink {
 public:
  CountingSink(std::vector<std::atomic<int>>& rows, std::atomic<int>& finished, at::ScalarType& type)
      : rows_(rows), finished_(finished), type_(type) {}
  void accept(int64_t begin, const at::Tensor& rows) override {
    EXPECT_EQ(finished_, 0);
    type_ = rows.scalar_type();
    for (int64_t i = 0; i < rows.size(0); ++i) ++rows_[static_cast<std::size_t>(begin + i)];
  }
  void finish() override { ++finished_; }

 private:
  std::vector<std::atomic<int>>& rows_;
  std::atomic<int>& finished_;
  at::ScalarType& type_;
};

TEST_P(WeightReaderTest, ASinkIsGivenEveryRowOnceInTheDtypeOfTheFile) {
  for (std::size_t i = 0; i < written.names.size(); ++i) {
    std::vector<std::atomic<int>> rows(static_cast<std::size_t>(written.values[i].size(0)));
    std::atomic<int> finished = 0;
    at::ScalarType type = at::kInt;
    WeightReader of_tensor(written.opened, at::kCPU, GetParam());
    of_tensor.add(*written.opened.find(written.names[i]), std::make_unique<CountingSink>(rows, finished, type));
    of_tensor.read();
    for (const auto& row : rows) EXPECT_EQ(row, 1);
    EXPECT_EQ(finished, 1);
    EXPECT_EQ(type, written.values[i].scalar_type());
  }
}

TEST_P(WeightReaderTest, ATensorMayBeAskedForTwice) {
  const at::Tensor first = at::zeros({5, 1000}), second = at::zeros({5, 1000}, at::kBFloat16);
  reader.add(written.names[5], first);
  reader.add(written.names[5], second);
  reader.read();
  EXPECT_TRUE(at::equal(first, written.values[5]));
  EXPECT_TRUE(at::equal(second, written.values[5].to(at::kBFloat16)));
}

TEST_P(WeightReaderTest, AStopIsSeenBetweenChunks) {
  const at::Tensor target = at::zeros({5, 1000});
  reader.add(written.names[5], target);
  const StopRequests requests;
  set_max_time(0);
  EXPECT_THROW(reader.read(), StopError);
  EXPECT_EQ(target.abs().sum().item<float>(), 0);
}

TEST_P(WeightReaderTest, AnErrorOfAThreadIsThrown) {
  reader.add(written.names[5], at::zeros({5, 1000}));
  reader.add(written.names[4], at::zeros({64, 1}).expand({64, 33}));  // LibTorch writes to no such tensor
  EXPECT_THROW(reader.read(), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(All, WeightReaderTest,
                         ::testing::Values(WeightReaderOptions{}, WeightReaderOptions{1, 1, false},
                                           WeightReaderOptions{8 << 20, 3, true}, WeightReaderOptions{1, 1, true},
                                           WeightReaderOptions{1000, 3, true}, WeightReaderOptions{5000, 2, true}));

TEST(WeightReader, RefusesAnotherShape) {
  const Files written;
  WeightReader reader(written.opened, at::kCPU);
  EXPECT_THROW(reader.add(written.names[4], at::zeros({64, 32})), ShapeError);
  EXPECT_THROW(reader.add(written.names[4], at::zeros({33, 64})), ShapeError);
}

TEST(WeightReader, SaysWhichTensorIsWrong) {
  const TemporaryFolder folder;
  storage::write_safetensors(folder / "model.safetensors",
                             {{"odd", storage::DType::kF8E5M2, {8}, std::string_view("12345678"), nullptr}});
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  WeightReader reader(files, at::kCPU);
  for (const std::string name : {"odd", "absent"}) {
    EXPECT_SAYS(testing_support::refusal<FormatError>([&] { reader.add(name, at::zeros({8})); }), name);
  }
}

}  // namespace
}  // namespace lora_train::model
