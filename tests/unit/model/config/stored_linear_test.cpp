#include "lora_train/model/weights/stored_linear.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "quantised_folder.h"

namespace lora_train::model {
namespace {

using storage::DType;

TensorSpec up_proj(const ModelConfig& config) {
  for (const auto& spec : expected_tensors(config)) {
    if (spec.name == QuantisedFolder::full("weight")) return spec;
  }
  throw std::logic_error("the model has no such linear");
}

/// A folder that is written, opened and checked.
struct Opened {
  explicit Opened(const QuantisedFolder& made)
      : config(made.read_config()), weights(made.write(folder.path())), linear(read()) {}

  testing_support::TemporaryFolder folder;
  ModelConfig config;
  storage::WeightFiles weights;
  std::string log;
  StoredLinear linear;

 private:
  StoredLinear read() {
    ::testing::internal::CaptureStderr();
    check_weights(config, weights);
    log = ::testing::internal::GetCapturedStderr();
    return stored_linear(config, up_proj(config), weights);
  }
};

std::string short_name(const storage::TensorEntry* entry) {
  return entry == nullptr ? "" : entry->name.substr(std::string(QuantisedFolder::kLinear).size() + 1);
}

TEST(StoredLinear, ReadsPlainWeights) {
  const Opened opened{QuantisedFolder()};
  EXPECT_EQ(opened.linear.format, LinearFormat::kPlain);
  EXPECT_EQ(opened.linear.format_name, "bf16");
  EXPECT_EQ(opened.linear.num_scales(), 0);
  EXPECT_EQ(opened.linear.bytes(2), 24 * 16 * 2);
  EXPECT_EQ(linear_formats(opened.config, opened.weights), "14 linears bf16");
}

TEST(StoredLinear, Reads4BitWithPlainScales) {
  for (const std::string type : {"nf4", "fp4"}) {
    const Opened opened(QuantisedFolder::four_bit(false, type));
    const StoredLinear& linear = opened.linear;
    EXPECT_EQ(linear.format, LinearFormat::k4Bit);
    EXPECT_EQ(linear.format_name, type);
    EXPECT_EQ(linear.out_features, 24);
    EXPECT_EQ(linear.in_features, 16);
    EXPECT_EQ(linear.block_size, 64);
    EXPECT_EQ(linear.nested_block_size, 0);
    EXPECT_EQ(short_name(linear.weight), "weight");
    EXPECT_EQ(short_name(linear.scales), "weight.absmax");
    EXPECT_EQ(short_name(linear.map), "weight.quant_map");
    EXPECT_EQ(linear.nested_scales, nullptr);
    EXPECT_EQ(linear.num_scales(), 6);
    EXPECT_EQ(linear.bytes(2), 192 + 16 * 4 + 6 * 4);
    EXPECT_EQ(linear.names.size(), 3U);
    EXPECT_EQ(linear_formats(opened.config, opened.weights), "13 linears bf16, 1 " + type);
    EXPECT_EQ(opened.log, "");
  }
}

TEST(StoredLinear, Reads4BitWithNestedScales) {
  const Opened opened(QuantisedFolder::four_bit(true));
  const StoredLinear& linear = opened.linear;
  EXPECT_EQ(linear.nested_block_size, 256);
  EXPECT_EQ(linear.nested_offset, 0.25F);
  EXPECT_EQ(short_name(linear.nested_scales), "weight.nested_absmax");
  EXPECT_EQ(short_name(linear.nested_map), "weight.nested_quant_map");
  EXPECT_EQ(linear.num_scales(), 6);
  EXPECT_EQ(linear.bytes(4), 192 + 16 * 4 + 6 + (1 + 256) * 4);
  EXPECT_EQ(linear.names.size(), 5U);
  EXPECT_EQ(opened.log, "");
}

TEST(StoredLinear, ReadsPackedWeightsUnderAnyDType) {
  for (const auto& [dtype, count] : {std::pair(DType::kBF16, 96), std::pair(DType::kF16, 96),
                                     std::pair(DType::kF32, 48), std::pair(DType::kI8, 192)}) {
    QuantisedFolder folder = QuantisedFolder::four_bit(false);
    folder.part("weight", dtype, {count, 1});
    EXPECT_EQ(Opened(folder).linear.format, LinearFormat::k4Bit) << storage::dtype_name(dtype);
  }
}

TEST(StoredLinear, RoundsUpForSizesThatBlocksDoNotDivide) {
  QuantisedFolder folder = QuantisedFolder::four_bit(false);
  folder.state["shape"] = {23, 15};
  folder.keys = {{"hidden_size", 15}, {"intermediate_size", 23}, {"head_dim", 4}};
  for (const auto& spec : expected_tensors(folder.read_config())) folder.put(spec.name, DType::kBF16, spec.shape);
  folder.part("weight", DType::kU8, {173, 1});
  EXPECT_EQ(Opened(folder).linear.num_scales(), 6);
  EXPECT_EQ(Opened(folder).linear.bytes(2), 173 + 16 * 4 + 6 * 4);
}

TEST(StoredLinear, ReadsInt8) {
  QuantisedFolder folder = QuantisedFolder::int8();
  const Opened opened(folder);
  EXPECT_EQ(opened.linear.format, LinearFormat::kInt8);
  EXPECT_EQ(opened.linear.format_name, "int8");
  EXPECT_EQ(short_name(opened.linear.scales), "SCB");
  EXPECT_EQ(opened.linear.num_scales(), 24);
  EXPECT_EQ(opened.linear.bytes(2), 24 * 16 + 24 * 4);
  EXPECT_EQ(opened.linear.names.size(), 2U);
  EXPECT_EQ(opened.log, "");
  folder.reshape("weight_format", {1});
  EXPECT_EQ(Opened(folder).linear.format, LinearFormat::kInt8);
  folder.remove("weight_format");
  EXPECT_EQ(Opened(folder).linear.names.size(), 1U);
}

TEST(StoredLinear, ReadsFp8WithAScalePerBlockRowOrMatrix) {
  struct Expected {
    std::vector<std::int64_t> shape;
    std::int64_t block_rows, block_columns, num_scales;
  };
  for (const auto& expected : {Expected{{6, 2}, 4, 8, 12}, Expected{{24, 1}, 1, 16, 24}, Expected{{24}, 1, 16, 24},
                               Expected{{}, 24, 16, 1}, Expected{{1}, 24, 16, 1}}) {
    for (const auto dtype : {DType::kF32, DType::kBF16, DType::kF8E8M0}) {
      QuantisedFolder folder = QuantisedFolder::fp8(expected.shape);
      folder.retype("weight_scale_inv", dtype);
      const Opened opened(folder);
      const StoredLinear& linear = opened.linear;
      EXPECT_EQ(linear.format, LinearFormat::kFp8);
      EXPECT_EQ(linear.format_name, "fp8");
      EXPECT_EQ(linear.block_rows, expected.block_rows);
      EXPECT_EQ(linear.block_columns, expected.block_columns);
      EXPECT_EQ(linear.num_scales(), expected.num_scales);
      EXPECT_EQ(linear.bytes(2), 24 * 16 + expected.num_scales * 4);
      EXPECT_EQ(short_name(linear.scales), "weight_scale_inv");
    }
  }
}

TEST(StoredLinear, ReadsFp8BlocksOf128UnlessConfigSaysOtherwise) {
  QuantisedFolder folder = QuantisedFolder::fp8({1, 1});
  folder.config.erase("weight_block_size");
  EXPECT_EQ(Opened(folder).linear.block_rows, 128);
  EXPECT_EQ(Opened(folder).linear.num_scales(), 1);
  folder.config["weight_block_size"] = nullptr;
  EXPECT_EQ(Opened(folder).linear.block_rows, 24);
}

TEST(StoredLinear, ReadsFp8OfCompressedTensors) {
  QuantisedFolder folder = QuantisedFolder::compressed();
  EXPECT_EQ(Opened(folder).linear.block_rows, 1);
  EXPECT_EQ(short_name(Opened(folder).linear.scales), "weight_scale");
  auto& group = folder.config["config_groups"]["group_0"];
  group["weights"]["strategy"] = "block";
  group["weights"]["block_structure"] = {4, 8};
  group["input_activations"] = {{"type", "float"}, {"num_bits", 8}, {"dynamic", true}, {"strategy", "token"}};
  folder.reshape("weight_scale", {6, 2});
  EXPECT_EQ(Opened(folder).linear.block_columns, 8);
  group["weights"]["strategy"] = "tensor";
  folder.reshape("weight_scale", {1});
  EXPECT_EQ(Opened(folder).linear.num_scales(), 1);
}

TEST(StoredLinear, KnowsScalesOfActivationsWithoutReadingThem) {
  QuantisedFolder folder = QuantisedFolder::fp8();
  folder.config["activation_scheme"] = "static";
  folder.part("input_scale", DType::kF32, {1});
  folder.part("activation_scale", DType::kF32, {});
  const Opened opened(folder);
  EXPECT_EQ(opened.linear.names.size(), 3U);
  EXPECT_EQ(opened.log, "");
}

TEST(StoredLinear, AcceptsASkippedLinearThatIsQuantisedAllTheSame) {
  QuantisedFolder folder = QuantisedFolder::four_bit(false);
  folder.config["llm_int8_skip_modules"] = {"lm_head", QuantisedFolder::kLinear};
  EXPECT_EQ(Opened(folder).linear.format_name, "nf4");
}

TEST(StoredLinear, AcceptsTheConfigOfEarlyVersions) {
  QuantisedFolder folder = QuantisedFolder::four_bit(true);
  folder.config = {{"load_in_4bit", true}};
  EXPECT_EQ(Opened(folder).linear.format_name, "nf4");
}

TEST(StoredLinear, RefusesQuantisedTensorsOtherThanLinears) {
  struct Case {
    const char *name, *part, *message;
  };
  for (const auto& [name, part, message] :
       {Case{"lm_head.weight", "", "is stored quantised (U8"},
        Case{"lm_head.weight", "lm_head.weight.absmax", "with lm_head left out"},
        Case{"model.embed_tokens.weight", "", "is supported for the linears of layers only: use the"},
        Case{"model.norm.weight", "", "for the linears of layers only"},
        Case{"model.layers.0.self_attn.q_proj.bias", "", "is stored quantised"}}) {
    QuantisedFolder folder = QuantisedFolder::four_bit(false);
    if (*part == '\0') {
      folder.put(name, DType::kU8, {8, 1});
    } else {
      folder.put(part, DType::kF32, {8});
    }
    const testing_support::TemporaryFolder place;
    try {
      check_weights(folder.read_config(), folder.write(place.path()));
      ADD_FAILURE() << "accepted " << name;
    } catch (const FormatError& error) {
      EXPECT_TRUE(error.where().ends_with(std::string(": ") + name)) << error.where();
      EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    }
  }
}

TEST(StoredLinear, IsRefusedByNameWhereItIsNotDecoded) {
  EXPECT_NO_THROW(refuse_quantised(QuantisedFolder().read_config(), "training"));
  try {
    refuse_quantised(QuantisedFolder::four_bit(false).read_config(), "training");
    ADD_FAILURE() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), "dir/config.json: quantization_config");
    EXPECT_NE(error.message().find("training of a model stored quantised (bitsandbytes 4-bit (nf4))"),
              std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace lora_train::model
