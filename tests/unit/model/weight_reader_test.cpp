#include "model/weights/weight_reader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/model/weights/tensor_io.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::model {
namespace {

using testing_support::TemporaryFolder;
using testing_support::uniform;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// Odd sizes in every dtype, written to a folder.
struct Files {
  explicit Files(const TemporaryFolder& folder) {
    const std::vector<std::vector<std::int64_t>> shapes{{1}, {37}, {1, 5}, {13, 7}, {64, 33}, {5, 1000}};
    std::vector<storage::TensorToWrite> tensors;
    for (const auto type : kTypes) {
      for (const auto& shape : shapes) {
        if (type == at::kHalf && shape.size() == 1) continue;
        values.push_back(uniform(shape, values.size() + 1, type));
        names.push_back("tensor." + std::to_string(names.size()));
        storage::TensorToWrite tensor;
        tensor.name = names.back();
        tensor.dtype = type == at::kHalf ? storage::DType::kF16 : storage_dtype(type);
        tensor.shape = shape;
        tensor.bytes = {static_cast<const char*>(values.back().data_ptr()), values.back().nbytes()};
        tensors.push_back(tensor);
      }
    }
    storage::write_safetensors(folder / "model.safetensors", tensors);
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
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

class WeightReaderTest : public ::testing::TestWithParam<WeightReaderOptions> {};

TEST_P(WeightReaderTest, FillsTargetsOfAnyTypeAndStrideAndNothingElse) {
  const TemporaryFolder folder;
  const Files written(folder);
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> got, expected;
    WeightReader reader(files, at::kCPU, GetParam());
    for (std::size_t i = written.names.size(); i-- > 0;) {
      got.push_back(surroundings(written.values[i], type));
      expected.push_back(got.back().clone());
      inside(expected.back(), written.values[i]).copy_(written.values[i]);
      reader.add(written.names[i], inside(got.back(), written.values[i]));
    }
    reader.read();
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
  const TemporaryFolder folder;
  const Files written(folder);
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  for (std::size_t i = 0; i < written.names.size(); ++i) {
    std::vector<std::atomic<int>> rows(static_cast<std::size_t>(written.values[i].size(0)));
    std::atomic<int> finished = 0;
    at::ScalarType type = at::kInt;
    WeightReader reader(files, at::kCPU, GetParam());
    reader.add(written.names[i], std::make_unique<CountingSink>(rows, finished, type));
    reader.read();
    for (const auto& row : rows) EXPECT_EQ(row, 1);
    EXPECT_EQ(finished, 1);
    EXPECT_EQ(type, written.values[i].scalar_type());
  }
}

TEST_P(WeightReaderTest, ATensorMayBeAskedForTwice) {
  const TemporaryFolder folder;
  const Files written(folder);
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  const at::Tensor first = at::zeros({5, 1000}), second = at::zeros({5, 1000}, at::kBFloat16);
  WeightReader reader(files, at::kCPU, GetParam());
  reader.add(written.names[5], first);
  reader.add(written.names[5], second);
  reader.read();
  EXPECT_TRUE(at::equal(first, written.values[5]));
  EXPECT_TRUE(at::equal(second, written.values[5].to(at::kBFloat16)));
}

TEST_P(WeightReaderTest, AStopIsSeenBetweenChunks) {
  const TemporaryFolder folder;
  const Files written(folder);
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  const at::Tensor target = at::zeros({5, 1000});
  WeightReader reader(files, at::kCPU, GetParam());
  reader.add(written.names[5], target);
  const StopRequests requests;
  set_max_time(0);
  EXPECT_THROW(reader.read(), StopError);
  EXPECT_EQ(target.abs().sum().item<float>(), 0);
}

TEST_P(WeightReaderTest, AnErrorOfAThreadIsThrown) {
  const TemporaryFolder folder;
  const Files written(folder);
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  WeightReader reader(files, at::kCPU, GetParam());
  reader.add(written.names[5], at::zeros({5, 1000}));
  reader.add(written.names[4], at::zeros({64, 1}).expand({64, 33}));  // LibTorch writes to no such tensor
  EXPECT_THROW(reader.read(), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(All, WeightReaderTest,
                         ::testing::Values(WeightReaderOptions{}, WeightReaderOptions{1, 1, false},
                                           WeightReaderOptions{8 << 20, 3, true}, WeightReaderOptions{1, 1, true},
                                           WeightReaderOptions{1000, 3, true}, WeightReaderOptions{5000, 2, true}));

TEST(WeightReader, RefusesAnotherShape) {
  const TemporaryFolder folder;
  const Files written(folder);
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  WeightReader reader(files, at::kCPU);
  EXPECT_THROW(reader.add(written.names[4], at::zeros({64, 32})), ShapeError);
  EXPECT_THROW(reader.add(written.names[4], at::zeros({33, 64})), ShapeError);
}

TEST(WeightReader, SaysWhichTensorIsWrong) {
  const TemporaryFolder folder;
  const std::vector<char> bytes(8);
  storage::TensorToWrite tensor;
  tensor.name = "odd";
  tensor.dtype = storage::DType::kF8E5M2;
  tensor.shape = {8};
  tensor.bytes = {bytes.data(), bytes.size()};
  storage::write_safetensors(folder / "model.safetensors", {tensor});
  const storage::WeightFiles files = storage::open_model_weights(folder.path());
  WeightReader reader(files, at::kCPU);
  for (const std::string name : {"odd", "absent"}) {
    try {
      reader.add(name, at::zeros({8}));
      ADD_FAILURE() << name;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lora_train::model
