// Malformed quantised folders, each with the tensor or key that is named and the words of the refusal.
#include <gtest/gtest.h>

#include <iterator>
#include <limits>

#include "lora_train/base/error.h"
#include "quantised_folder.h"

namespace lora_train::model {
namespace {

using storage::DType;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

struct Malformed {
  const char* name;
  QuantisedFolder (*make)();
  void (*spoil)(QuantisedFolder&);
  const char* where;    ///< what it ends in; a part of the linear
  const char* message;  ///< what it contains
};
using Folder = QuantisedFolder;

Folder nf4() { return Folder::four_bit(false); }
Folder nested() { return Folder::four_bit(true); }
Folder fp4() { return Folder::four_bit(false, "fp4"); }
Folder int8() { return Folder::int8(); }
Folder blocks() { return Folder::fp8(); }
Folder rows() { return Folder::fp8({24, 1}); }
Folder compressed() { return Folder::compressed(); }
nlohmann::json& scheme(Folder& f) { return f.config["config_groups"]["group_0"]["weights"]; }

#define SPOIL(...) [](Folder& f) { __VA_ARGS__; }

const Malformed kParts4Bit[] = {
    {"packed without any state", nf4, SPOIL(f.state = nullptr; f.remove("weight.absmax"); f.remove("weight.quant_map")),
     "weight", "is U8 [192, 1] without scales"},
    {"packed as BF16 without any state", nf4,
     SPOIL(f.state = nullptr; f.remove("weight.absmax"); f.remove("weight.quant_map");
           f.part("weight", DType::kBF16, {96, 1})),
     "weight", "is BF16 [96, 1] without scales"},
    {"no quant_state", nf4, SPOIL(f.state = nullptr), "weight.quant_state.bitsandbytes__nf4", "the tensor is missing"},
    {"no absmax", nf4, SPOIL(f.remove("weight.absmax")), "weight.absmax", "the tensor is missing"},
    {"no quant_map", nf4, SPOIL(f.remove("weight.quant_map")), "weight.quant_map", "the tensor is missing"},
    {"no nested_absmax", nested, SPOIL(f.remove("weight.nested_absmax")), "weight.nested_absmax",
     "the tensor is missing"},
    {"no nested_quant_map", nested, SPOIL(f.remove("weight.nested_quant_map")), "weight.nested_quant_map",
     "the tensor is missing"},
    {"nested tensors of plain scales", nf4, SPOIL(f.part("weight.nested_absmax", DType::kF32, {1})),
     "weight.quant_state.bitsandbytes__nf4", "has no nested_blocksize"},
    {"absmax of one block less", nf4, SPOIL(f.reshape("weight.absmax", {5})), "weight.absmax",
     "is F32 [5]; a scale for each 64 weights, F32 [6] was expected"},
    {"absmax of one block more", nf4, SPOIL(f.reshape("weight.absmax", {7})), "weight.absmax", "F32 [6] was expected"},
    {"absmax of another rank", nf4, SPOIL(f.reshape("weight.absmax", {6, 1})), "weight.absmax", "is F32 [6, 1]"},
    {"absmax in BF16", nf4, SPOIL(f.retype("weight.absmax", DType::kBF16)), "weight.absmax", "F32 [6] was expected"},
    {"codes of absmax without nesting", nf4, SPOIL(f.retype("weight.absmax", DType::kU8)), "weight.absmax",
     "is U8 [6]"},
    {"plain absmax with nesting", nested, SPOIL(f.retype("weight.absmax", DType::kF32)), "weight.absmax",
     "a code for each 64 weights, U8 [6] was expected"},
    {"nested_absmax of one too many", nested, SPOIL(f.reshape("weight.nested_absmax", {2})), "weight.nested_absmax",
     "F32 [1] was expected"},
    {"nested_absmax in U8", nested, SPOIL(f.retype("weight.nested_absmax", DType::kU8)), "weight.nested_absmax",
     "is U8 [1]"},
    {"quant_map of 15", nf4, SPOIL(f.reshape("weight.quant_map", {15})), "weight.quant_map", "F32 [16] was expected"},
    {"quant_map of 256", nf4, SPOIL(f.reshape("weight.quant_map", {256})), "weight.quant_map", "is F32 [256]"},
    {"quant_map in BF16", nf4, SPOIL(f.retype("weight.quant_map", DType::kBF16)), "weight.quant_map", "is BF16 [16]"},
    {"nested_quant_map of 16", nested, SPOIL(f.reshape("weight.nested_quant_map", {16})), "weight.nested_quant_map",
     "F32 [256] was expected"},
    {"NaN in absmax", nf4, SPOIL(f.set_float("weight.absmax", 5, kNan)), "weight.absmax", "value 5 is NaN or infinity"},
    {"infinity in absmax", nf4, SPOIL(f.set_float("weight.absmax", 0, -kInfinity)), "weight.absmax", "value 0 is NaN"},
    {"NaN in quant_map", nf4, SPOIL(f.set_float("weight.quant_map", 15, kNan)), "weight.quant_map", "value 15"},
    {"NaN in nested_absmax", nested, SPOIL(f.set_float("weight.nested_absmax", 0, kNan)), "weight.nested_absmax",
     "every scale must be finite"},
    {"infinity in nested_quant_map", nested, SPOIL(f.set_float("weight.nested_quant_map", 255, kInfinity)),
     "weight.nested_quant_map", "value 255"},
    {"too few packed bytes", nf4, SPOIL(f.reshape("weight", {191, 1})), "weight",
     "is U8 [191, 1]; 4-bit weights of [24, 16] are packed to U8 [192, 1]"},
    {"packed in a row", nf4, SPOIL(f.reshape("weight", {1, 192})), "weight", "U8 [192, 1]"},
    {"a byte for each code", nf4, SPOIL(f.reshape("weight", {384, 1})), "weight", "is U8 [384, 1]"},
    {"plain weights with a state", nf4, SPOIL(f.part("weight", DType::kBF16, {24, 16})), "weight", "is BF16 [24, 16]"},
};

const Malformed kStates[] = {
    {"block of 48", nf4, SPOIL(f.state["blocksize"] = 48), "__nf4: blocksize", "is 48; a power of two from 32 to 4096"},
    {"block of 16", nf4, SPOIL(f.state["blocksize"] = 16), "__nf4: blocksize", "is 16"},
    {"block of 8192", nf4, SPOIL(f.state["blocksize"] = 8192), "__nf4: blocksize", "is 8192"},
    {"block of 0", nf4, SPOIL(f.state["blocksize"] = 0), "__nf4: blocksize", "is 0"},
    {"negative block", nf4, SPOIL(f.state["blocksize"] = -64), "__nf4: blocksize", "is -64"},
    {"block as text", nf4, SPOIL(f.state["blocksize"] = "64"), "__nf4: blocksize", "a whole number"},
    {"nested block of 100", nested, SPOIL(f.state["nested_blocksize"] = 100), "__nf4: nested_blocksize", "is 100"},
    {"another block size than the scales", nf4, SPOIL(f.state["blocksize"] = 128), "weight.absmax",
     "a scale for each 128 weights, F32 [3] was expected"},
    {"dtype of integers", nf4, SPOIL(f.state["dtype"] = "int32"), "__nf4: dtype", "\"int32\" is not supported"},
    {"nested_dtype of bytes", nested, SPOIL(f.state["nested_dtype"] = "uint8"), "__nf4: nested_dtype",
     "expected float32"},
    {"transposed shape", nf4, SPOIL(f.state["shape"] = {16, 24}), "__nf4: shape",
     "is [16, 24] but dir/config.json asks for [24, 16]"},
    {"flat shape", nf4, SPOIL(f.state["shape"] = {384}), "__nf4: shape", "is [384]"},
    {"no shape", nf4, SPOIL(f.state["shape"] = nullptr), "__nf4: shape", "is missing from the quant_state"},
    {"no blocksize", nf4, SPOIL(f.state.erase("blocksize")), "__nf4: blocksize", "is missing"},
    {"unknown key", nf4, SPOIL(f.state["group"] = 1), "__nf4: group", "is not a key of a quant_state"},
    {"type unlike the name", nf4, SPOIL(f.state["quant_type"] = "fp4"), "__nf4: quant_type",
     "is not nf4, which the name of the tensor says"},
    {"unknown type", nf4, SPOIL(f.state["quant_type"] = "af4"), "__nf4: quant_type", "\"af4\" is not supported"},
    {"no dtype", nf4, SPOIL(f.state.erase("dtype")), "__nf4: dtype", "is missing from the quant_state"},
    {"no type", nf4, SPOIL(f.state.erase("quant_type")), "__nf4: quant_type", "is missing from the quant_state"},
    {"one nested key of plain scales", nf4, SPOIL(f.state["nested_offset"] = 0.5), "__nf4: nested_blocksize",
     "is missing from the quant_state"},
    {"half of the nested keys", nested, SPOIL(f.state.erase("nested_offset")), "__nf4: nested_offset", "is missing"},
    {"offset beyond fp32", nested, SPOIL(f.state["nested_offset"] = 1e300), "__nf4: nested_offset", "beyond fp32"},
    {"offset NaN", nested, SPOIL(f.state = R"({"quant_type": "nf4", "nested_offset": NaN})"), "__nf4",
     "is not a JSON object"},
    {"state cut short", nf4, SPOIL(f.state = "{\"quant_type\": \"nf4"), "__nf4", "is not a JSON object"},
    {"state of binary", nf4, SPOIL(f.state = "\xFF\x01\x02"), "__nf4", "is not a JSON object"},
    {"state of a megabyte", nf4, SPOIL(f.state = std::string(1'000'000, '[')), "__nf4", "of at most 4096 bytes"},
    {"empty state", nf4, SPOIL(f.state = ""), "__nf4", "is not a JSON object"},
    {"state in F32", nf4, SPOIL(f.state = nullptr; f.part(f.state_name, DType::kF32, {8})), "__nf4",
     "the JSON of a quant_state as bytes, U8"},
    {"two states", nf4, SPOIL(f.part("weight.quant_state.bitsandbytes__fp4", DType::kU8, {2})), "__fp4",
     "is present together with"},
};

const Malformed kBytes[] = {
    {"int8 without SCB", int8, SPOIL(f.remove("SCB")), "SCB", "the tensor is missing"},
    {"int8 without anything", int8, SPOIL(f.remove("SCB"); f.remove("weight_format")), "weight",
     "is I8 [24, 16] without scales"},
    {"SCB by column", int8, SPOIL(f.reshape("SCB", {16})), "SCB", "is F32 [16]; a scale for each row, F32 [24]"},
    {"SCB in F16", int8, SPOIL(f.retype("SCB", DType::kF16)), "SCB", "is F16 [24]"},
    {"NaN in SCB", int8, SPOIL(f.set_float("SCB", 23, kNan)), "SCB", "value 23"},
    {"col32", int8, SPOIL(f.bytes("weight_format")[0] = 1), "weight_format", "one U8 of 0 was expected"},
    {"col_ampere", int8, SPOIL(f.bytes("weight_format")[0] = 3), "weight_format",
     "only int8 weights in rows are supported, as bitsandbytes 0.45 saves them"},
    {"unknown layout", int8, SPOIL(f.bytes("weight_format")[0] = 9), "weight_format", "one U8 of 0 was expected"},
    {"layout in I64", int8, SPOIL(f.retype("weight_format", DType::kI64)), "weight_format", "is I64"},
    {"int8 transposed", int8, SPOIL(f.reshape("weight", {16, 24})), "weight", "I8 [24, 16] was expected"},
    {"int8 in U8", int8, SPOIL(f.retype("weight", DType::kU8)), "weight", "is U8 [24, 16]"},
    {"SCB beside BF16", int8, SPOIL(f.retype("weight", DType::kBF16)), "weight", "I8 [24, 16] was expected"},
    {"e4m3 without scales", blocks, SPOIL(f.remove("weight_scale_inv")), "weight",
     "is F8_E4M3 [24, 16] without scales"},
    {"two kinds of scales", blocks, SPOIL(f.part("weight_scale", DType::kF32, {6, 2})), "weight_scale",
     "is present together with"},
    {"e5m2", blocks, SPOIL(f.retype("weight", DType::kF8E5M2)), "weight", "has dtype F8_E5M2"},
    {"e4m3fnuz", blocks, SPOIL(f.retype("weight", DType::kF8E4M3Fnuz)), "weight", "only F8_E4M3 weights are supported"},
    {"e5m2 without scales", blocks, SPOIL(f.retype("weight", DType::kF8E5M2); f.remove("weight_scale_inv")), "weight",
     "is F8_E5M2 [24, 16] without scales"},
    {"fp8 transposed", blocks, SPOIL(f.reshape("weight", {16, 24})), "weight", "has shape [16, 24]"},
    {"transposed scale blocks", blocks, SPOIL(f.reshape("weight_scale_inv", {2, 6})), "weight_scale_inv",
     "[6, 2] was expected"},
    {"row of scales where config.json says blocks", blocks, SPOIL(f.reshape("weight_scale_inv", {24, 1})),
     "weight_scale_inv", "has shape [24, 1]"},
    {"blocks where config.json says none", rows, SPOIL(f.reshape("weight_scale_inv", {6, 2})), "weight_scale_inv",
     "[] or [1] or [1, 1] or [24] or [24, 1] was expected"},
    {"scales by column", rows, SPOIL(f.reshape("weight_scale_inv", {1, 16})), "weight_scale_inv", "has shape [1, 16]"},
    {"scales in F16", rows, SPOIL(f.retype("weight_scale_inv", DType::kF16)), "weight_scale_inv", "is F16 [24, 1]"},
    {"infinite scale", blocks, SPOIL(f.set_float("weight_scale_inv", 11, kInfinity)), "weight_scale_inv", "value 11"},
    {"NaN in BF16 scales", compressed,
     SPOIL(f.bytes("weight_scale")[46] = '\xC0'; f.bytes("weight_scale")[47] = '\x7F'), "weight_scale", "value 23"},
    {"NaN in E8M0 scales", blocks,
     SPOIL(f.retype("weight_scale_inv", DType::kF8E8M0); f.bytes("weight_scale_inv")[3] = '\xFF'), "weight_scale_inv",
     "value 3"},
    {"parts of two formats", nf4, SPOIL(f.part("SCB", DType::kF32, {24})), "weight", "belong to different formats"},
    {"F64", nf4, SPOIL(f = Folder(); f.part("weight", DType::kF64, {24, 16})), "weight",
     "is F64 [24, 16] without scales; expected [24, 16] in F32"},
};

const Malformed kContradictions[] = {
    {"nf4 without quantization_config", nf4, SPOIL(f.config.clear()), "weight",
     "is stored as nf4, but dir/config.json has no quantization_config: config and weights do not belong together"},
    {"nf4 where fp8 is said", nf4, SPOIL(f.config = blocks().config), "weight", "quantization_config says fp8"},
    {"nf4 where fp4 is said", nf4, SPOIL(f.config["bnb_4bit_quant_type"] = "fp4"), "weight",
     "is stored as nf4, but dir/config.json: quantization_config says bitsandbytes 4-bit (fp4)"},
    {"fp4 where nf4 is said", fp4, SPOIL(f.config["bnb_4bit_quant_type"] = "nf4"), "weight", "is stored as fp4"},
    {"nf4 where int8 is said", nf4, SPOIL(f.config = int8().config), "weight", "says bitsandbytes 8-bit"},
    {"int8 where nf4 is said", int8, SPOIL(f.config = nf4().config), "weight", "is stored as int8"},
    {"fp8 where nf4 is said", blocks, SPOIL(f.config = nf4().config), "weight", "is stored as fp8"},
    {"plain where nf4 is said", nf4, SPOIL(const auto said = f.config; f = Folder(); f.config = said),
     "dir/config.json: quantization_config", "every linear of the weights is plain"},
};

template <std::size_t N>
void expect_all_refused(const Malformed (&cases)[N]) {
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.name);
    const testing_support::TemporaryFolder place;
    QuantisedFolder folder = malformed.make();
    malformed.spoil(folder);
    try {
      const ModelConfig config = folder.read_config();
      check_weights(config, folder.write(place.path()));
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      const std::string where = malformed.where;
      const bool is_part = where.find(':') == std::string::npos && !where.starts_with("__");
      const std::string expected =
          is_part ? (place / "model.safetensors").string() + ": " + QuantisedFolder::full(where) : where;
      EXPECT_TRUE(error.where().ends_with(expected)) << error.where();
      EXPECT_NE(error.message().find(malformed.message), std::string::npos) << error.message();
      EXPECT_LT(error.message().size(), 500U) << error.message();
    }
  }
}

static_assert(std::size(kParts4Bit) + std::size(kStates) + std::size(kBytes) + std::size(kContradictions) >= 60);
TEST(MalformedQuantisedFolder, RefusesMalformedPartsOf4BitWeights) { expect_all_refused(kParts4Bit); }
TEST(MalformedQuantisedFolder, RefusesMalformedQuantStates) { expect_all_refused(kStates); }
TEST(MalformedQuantisedFolder, RefusesMalformedInt8AndFp8) { expect_all_refused(kBytes); }
TEST(MalformedQuantisedFolder, RefusesTensorsThatContradictConfigJson) { expect_all_refused(kContradictions); }

struct BadConfig {
  QuantisedFolder (*make)();
  void (*spoil)(QuantisedFolder&);
  const char *key, *message;
};

TEST(QuantizationConfig, RefusesByNameWhatItCannotDecode) {
  const BadConfig cases[] = {
      {nf4, SPOIL(f.config["quant_method"] = "gptq"), "", "\"gptq\" are not supported: use the unquantised model"},
      {nf4, SPOIL(f.config["quant_method"] = "mxfp4"), "", "\"mxfp4\""},
      {nf4, SPOIL(f.config = {{"bits", 4}}), "", "quant_method is missing"},
      {nf4, SPOIL(f.config["load_in_8bit"] = true), ".load_in_4bit", "must be true, not both"},
      {nf4, SPOIL(f.config["load_in_4bit"] = false), ".load_in_4bit", "must be true, not neither"},
      {nf4, SPOIL(f.config["load_in_4bit"] = 1), ".load_in_4bit", "true or false was expected"},
      {nf4, SPOIL(f.config["bnb_4bit_quant_type"] = "int4"), ".bnb_4bit_quant_type", "expected nf4 or fp4"},
      {nf4, SPOIL(f.config["llm_int8_skip_modules"] = "lm_head"), ".llm_int8_skip_modules", "a list of strings"},
      {blocks, SPOIL(f.config["fmt"] = "e5m2"), ".fmt", "\"e5m2\" is not supported; expected e4m3"},
      {blocks, SPOIL(f.config["weight_block_size"] = 128), ".weight_block_size", "expected two sizes"},
      {blocks, SPOIL(f.config["weight_block_size"] = {128, 0}), ".weight_block_size", "expected two sizes"},
      {blocks, SPOIL(f.config["weight_block_size"] = {128, "128"}), ".weight_block_size", "a whole number"},
      {compressed, SPOIL(f.config["format"] = "pack-quantized"), ".format", "\"pack-quantized\" is not supported"},
      {compressed, SPOIL(f.config["config_groups"] = nullptr), ".config_groups", "names no scheme"},
      {compressed, SPOIL(f.config["config_groups"]["group_0"] = nullptr), ".config_groups.group_0", "a scheme"},
      {compressed, SPOIL(f.config["config_groups"]["group_0"]["weights"] = nullptr), ".config_groups.group_0.weights",
       "a weight scheme"},
      {compressed, SPOIL(scheme(f)["type"] = "int"), ".config_groups.group_0.weights.type", "is int; for compressed"},
      {compressed, SPOIL(scheme(f)["num_bits"] = 4), ".config_groups.group_0.weights.num_bits", "is 4;"},
      {compressed, SPOIL(scheme(f)["symmetric"] = false), ".config_groups.group_0.weights.symmetric", "is false;"},
      {compressed, SPOIL(scheme(f)["dynamic"] = true), ".config_groups.group_0.weights.dynamic", "is true;"},
      {compressed, SPOIL(scheme(f)["actorder"] = "group"), ".config_groups.group_0.weights.actorder", "not supported"},
      {compressed, SPOIL(scheme(f)["strategy"] = "group"), ".config_groups.group_0.weights.strategy", "\"group\""},
      {compressed, SPOIL(scheme(f)["strategy"] = "block"), ".config_groups.group_0.weights.block_structure",
       "two sizes"},
      {compressed, SPOIL(f.config["sparsity_config"] = {{"format", "sparse-24-bitmask"}}), ".sparsity_config.format",
       "sparse weights"},
      {compressed, SPOIL(f.config["transform_config"] = {{"R1", 1}}), ".transform_config", "transformed weights"},
  };
  for (const BadConfig& bad : cases) {
    QuantisedFolder folder = bad.make();
    bad.spoil(folder);
    SCOPED_TRACE(folder.config.dump());
    try {
      folder.read_config();
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      EXPECT_EQ(error.where(), std::string("dir/config.json: quantization_config") + bad.key);
      EXPECT_NE(error.message().find(bad.message), std::string::npos) << error.message();
    }
  }
}

#undef SPOIL

}  // namespace
}  // namespace lora_train::model
