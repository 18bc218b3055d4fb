#include "lora_train/model/weights/init_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/half.h"
#include "lora_train/storage/model_weights.h"
#include "support/file_size_limit.h"
#include "support/temporary_folder.h"

namespace lora_train::model {
namespace {

namespace fs = std::filesystem;
using storage::DType;

class InitModel : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "tokenizer");
    write_file_atomic(folder_ / "tokenizer" / "tokenizer.json", "{}");
    write_file_atomic(folder_ / "config.json", config_text(R"({"initializer_range": 0.5})"));
    request_.config = folder_ / "config.json";
    request_.tokenizer = folder_ / "tokenizer";
    request_.output_dir = folder_ / "model";
  }
  storage::WeightFiles made() const {
    auto weights = storage::open_model_weights(request_.output_dir);
    check_weights(read_model_config(request_.output_dir), weights);
    return weights;
  }

  testing_support::TemporaryFolder folder_;
  InitModelRequest request_;
};

TEST_F(InitModel, WritesAFolderThatPassesEveryCheck) {
  const auto result = init_model(request_);
  EXPECT_EQ(result.files, (std::vector<std::string>{"model.safetensors", "tokenizer.json", "config.json"}));
  EXPECT_EQ(result.num_parameters, num_parameters(read_model_config(request_.output_dir)));
  EXPECT_EQ(result.weight_bytes, static_cast<std::uint64_t>(2 * result.num_parameters));
  const auto weights = made();
  for (const auto& spec : expected_tensors(read_model_config(request_.output_dir))) {
    const auto* entry = weights.find(spec.name);
    ASSERT_EQ(entry->dtype, DType::kBF16);
    std::uint16_t first = 0;
    std::memcpy(&first, weights.bytes(*entry).data(), 2);
    const bool is_norm = spec.kind == WeightKind::kNorm;
    if (is_norm || spec.kind == WeightKind::kBias) {
      EXPECT_EQ(first, is_norm ? 0x3F80 : 0) << spec.name;  // 1.0 or 0
    }
  }
}

TEST_F(InitModel, WritesTheSameWeightsInShards) {
  init_model(request_);
  std::map<std::string, std::string> whole;
  for (const auto& name : made().names()) whole[name] = made().bytes(*made().find(name));
  request_.max_shard_bytes = 2000;
  request_.overwrite = true;
  const auto result = init_model(request_);
  EXPECT_GT(result.files.size(), 6U);
  EXPECT_FALSE(fs::exists(request_.output_dir / "model.safetensors"));
  const auto weights = made();
  EXPECT_EQ(weights.names().size(), whole.size());
  for (const auto& [name, bytes] : whole) EXPECT_EQ(weights.bytes(*weights.find(name)), bytes) << name;
}

TEST_F(InitModel, RoundsToTheDTypeThatIsAsked) {
  request_.dtype = DType::kF32;
  init_model(request_);
  EXPECT_EQ(read_model_config(request_.output_dir).torch_dtype, "float32");
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const std::vector<float> exact = normal_weights(request_.seed, name, 0, 16 * 24, 0.5);
  const auto expect_bytes = [&](const auto& values) {
    EXPECT_EQ(made().bytes(*made().find(name)),
              std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])));
  };
  expect_bytes(exact);
  request_.overwrite = true;
  for (const auto& [dtype, torch_dtype, rounded] :
       {std::tuple(DType::kBF16, "bfloat16", &to_bf16), {DType::kF16, "float16", &to_f16}}) {
    request_.dtype = dtype;
    init_model(request_);
    EXPECT_EQ(read_model_config(request_.output_dir).torch_dtype, torch_dtype);
    std::vector<std::uint16_t> half;
    for (const float value : exact) half.push_back(rounded(value));
    expect_bytes(half);
  }
}

TEST_F(InitModel, DrawsANormalDistribution) {
  const auto values = normal_weights(1, "w", 0, 200'000, 2.0);
  double sum = 0, squares = 0;
  int beyond = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
    beyond += std::fabs(value) > 4.0F;
  }
  const double count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0.0, 5 * 2.0 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 2.0, 0.02);
  EXPECT_NEAR(beyond / count, 0.0455, 0.003);  // two standard deviations
}

TEST_F(InitModel, DrawsByElementSeedAndName) {
  const auto all = normal_weights(1, "w", 0, 100, 1.0), part = normal_weights(1, "w", 40, 60, 1.0);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 40));
  EXPECT_NE(all, normal_weights(2, "w", 0, 100, 1.0));
  EXPECT_NE(all, normal_weights(1, "v", 0, 100, 1.0));
}

TEST_F(InitModel, LeavesAFolderThatIsNotEmptyAlone) {
  fs::create_directories(request_.output_dir);
  write_file_atomic(request_.output_dir / "notes.txt", "mine");
  EXPECT_THROW(init_model(request_), ConfigError);
  EXPECT_EQ(std::distance(fs::directory_iterator(request_.output_dir), {}), 1);
  request_.overwrite = true;
  EXPECT_THROW(init_model(request_), ConfigError);
  EXPECT_EQ(read_file(request_.output_dir / "notes.txt"), "mine");
}

TEST_F(InitModel, KeepsTheOlderModelUntilTheNewOneIsWhole) {
  init_model(request_);
  const std::string older = read_file(request_.output_dir / "model.safetensors");
  request_.overwrite = true;
  request_.seed = 7;
  {
    const testing_support::FileSizeLimit full(older.size() / 2);
    EXPECT_THROW(init_model(request_), IoError);
  }
  EXPECT_EQ(read_file(request_.output_dir / "model.safetensors"), older);
  EXPECT_TRUE(fs::exists(request_.output_dir / "config.json"));
  init_model(request_);
  EXPECT_NE(read_file(request_.output_dir / "model.safetensors"), older);
  EXPECT_EQ(std::distance(fs::directory_iterator(request_.output_dir.parent_path()), {}), 3)
      << "nothing is left beside it";
}

TEST_F(InitModel, RefusesBeforeItWritesAnything) {
  write_file_atomic(folder_ / "config.json", config_text(R"({"hidden_act": "gelu"})"));
  EXPECT_THROW(init_model(request_), FormatError);
  write_file_atomic(folder_ / "config.json", config_text());
  fs::rename(folder_ / "tokenizer" / "tokenizer.json", folder_ / "tokenizer" / "vocab.json");
  EXPECT_THROW(init_model(request_), FormatError);
  request_.config = folder_ / "none.json";
  EXPECT_THROW(init_model(request_), IoError);
  EXPECT_FALSE(fs::exists(request_.output_dir));
}

}  // namespace
}  // namespace lora_train::model
