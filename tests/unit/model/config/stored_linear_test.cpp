// Malformed quantised folders, each with the tensor or key that is named and the words of the refusal.
#include "lora_train/model/weights/stored_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/storage/model_weights.h"
#include "support/expect_refused.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"

namespace lora_train::model {
namespace {

using storage::DType;

/// The model of config_text; model.layers.1.mlp.up_proj, [24, 16], is quantised, all else is BF16 zeros.
class QuantisedFolder {
 public:
  static constexpr const char* kLinear = "model.layers.1.mlp.up_proj";
  static constexpr std::int64_t kRows = 24, kColumns = 16;
  using Shape = std::vector<std::int64_t>;
  struct Tensor {
    DType dtype = DType::kBF16;
    Shape shape;
    std::string bytes;
  };

  nlohmann::json config = nlohmann::json::object();  ///< quantization_config
  nlohmann::json keys = nlohmann::json::object();    ///< other keys of config.json
  nlohmann::json state;                              ///< of 4 bits; written unless null
  std::string state_name = "weight.quant_state.bitsandbytes__nf4";

  QuantisedFolder() {
    for (const auto& spec : expected_tensors(config_with())) put(spec.name, DType::kBF16, spec.shape);
  }

  static QuantisedFolder four_bit(bool is_nested, const std::string& type = "nf4") {
    QuantisedFolder folder;
    folder.config = {{"quant_method", "bitsandbytes"},
                     {"load_in_4bit", true},
                     {"load_in_8bit", false},
                     {"bnb_4bit_quant_type", type}};
    folder.state = {{"quant_type", type}, {"blocksize", 64}, {"dtype", "bfloat16"}, {"shape", {kRows, kColumns}}};
    folder.state_name = "weight.quant_state.bitsandbytes__" + type;
    folder.part("weight", DType::kU8, {kRows * kColumns / 2, 1});
    folder.part("weight.quant_map", DType::kF32, {16});
    folder.part("weight.absmax", is_nested ? DType::kU8 : DType::kF32, {6});
    if (is_nested) {
      folder.state.update({{"nested_blocksize", 256}, {"nested_dtype", "float32"}, {"nested_offset", 0.25}});
      folder.part("weight.nested_absmax", DType::kF32, {1});
      folder.part("weight.nested_quant_map", DType::kF32, {256});
    }
    return folder;
  }
  static QuantisedFolder int8() {
    QuantisedFolder folder;
    folder.config = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", false}, {"load_in_8bit", true}};
    folder.part("weight", DType::kI8, {kRows, kColumns});
    folder.part("SCB", DType::kF32, {kRows});
    folder.part("weight_format", DType::kU8, {});
    return folder;
  }
  static QuantisedFolder fp8(const Shape& scales = {6, 2}) {
    QuantisedFolder folder;
    folder.config = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {4, 8}}};
    if (scales.size() < 2 || scales[0] == kRows) folder.config["weight_block_size"] = nullptr;
    folder.part("weight", DType::kF8E4M3, {kRows, kColumns});
    folder.part("weight_scale_inv", DType::kF32, scales);
    return folder;
  }
  /// FP8 with a scale per row, as compressed-tensors writes it.
  static QuantisedFolder compressed() {
    QuantisedFolder folder;
    const nlohmann::json weights = {{"type", "float"},      {"num_bits", 8},    {"strategy", "channel"},
                                    {"symmetric", true},    {"dynamic", false}, {"actorder", nullptr},
                                    {"group_size", nullptr}};
    const nlohmann::json group = {{"weights", weights}, {"targets", {"Linear"}}, {"output_activations", nullptr}};
    folder.config = {{"quant_method", "compressed-tensors"},
                     {"format", "float-quantized"},
                     {"config_groups", {{"group_0", group}}},
                     {"ignore", {"lm_head"}},
                     {"sparsity_config", nlohmann::json::object()}};
    folder.part("weight", DType::kF8E4M3, {kRows, kColumns});
    folder.part("weight_scale", DType::kBF16, {kRows, 1});
    return folder;
  }

  /// Adds or replaces a tensor of zeros.
  void put(const std::string& name, DType dtype, const Shape& shape) {
    tensors_[name] = {dtype, shape, std::string(storage::tensor_bytes(dtype, shape), '\0')};
  }
  /// The same for a part of the linear: "weight", "weight.absmax", "SCB".
  void part(const std::string& name, DType dtype, const Shape& shape) { put(full(name), dtype, shape); }
  void reshape(const std::string& name, const Shape& shape) { part(name, tensors_.at(full(name)).dtype, shape); }
  void retype(const std::string& name, DType dtype) { part(name, dtype, tensors_.at(full(name)).shape); }
  void remove(const std::string& name) { tensors_.erase(full(name)); }
  std::string& bytes(const std::string& name) { return tensors_.at(full(name)).bytes; }
  void set_float(const std::string& name, std::size_t i, float value) {
    std::memcpy(bytes(name).data() + i * sizeof(float), &value, sizeof(float));
  }
  static std::string full(const std::string& part) { return std::string(kLinear) + "." + part; }

  ModelConfig read_config() const {
    nlohmann::json changes = keys;
    if (!config.empty()) changes["quantization_config"] = config;
    return parse_model_config(config_text(changes.dump()), "dir/config.json");
  }
  storage::WeightFiles write(const std::filesystem::path& folder) const {
    auto all = tensors_;
    if (!state.is_null()) {
      const std::string text = state.is_string() ? state.get<std::string>() : state.dump();
      all[full(state_name)] = {DType::kU8, {static_cast<std::int64_t>(text.size())}, text};
    }
    std::vector<storage::TensorToWrite> list;
    for (const auto& [name, tensor] : all) list.push_back({name, tensor.dtype, tensor.shape, tensor.bytes, nullptr});
    write_safetensors(folder / "model.safetensors", list);
    return storage::open_model_weights(folder);
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

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

struct Stored {
  QuantisedFolder folder;
  LinearFormat format;
  std::string format_name, scales, map, nested_scales, nested_map;  ///< names of parts
  std::int64_t num_scales, bytes;                                   ///< beside weights of 2 bytes
  std::size_t num_names;
  std::string formats;
};

TEST(StoredLinear, ReadsPlainBitsandbytesAndFp8Weights) {
  const std::string map = "weight.quant_map", absmax = "weight.absmax";
  const Stored cases[] = {
      {QuantisedFolder(), LinearFormat::kPlain, "bf16", "", "", "", "", 0, 24 * 16 * 2, 0, "14 linears bf16"},
      {QuantisedFolder::four_bit(false), LinearFormat::k4Bit, "nf4", absmax, map, "", "", 6, 192 + 16 * 4 + 6 * 4, 3,
       "13 linears bf16, 1 nf4"},
      {QuantisedFolder::four_bit(false, "fp4"), LinearFormat::k4Bit, "fp4", absmax, map, "", "", 6,
       192 + 16 * 4 + 6 * 4, 3, "13 linears bf16, 1 fp4"},
      {QuantisedFolder::four_bit(true), LinearFormat::k4Bit, "nf4", absmax, map, "weight.nested_absmax",
       "weight.nested_quant_map", 6, 192 + 16 * 4 + 6 + (1 + 256) * 4, 5, "13 linears bf16, 1 nf4"},
      {QuantisedFolder::int8(), LinearFormat::kInt8, "int8", "SCB", "", "", "", 24, 24 * 16 + 24 * 4, 2,
       "13 linears bf16, 1 int8"},
      {QuantisedFolder::fp8(), LinearFormat::kFp8, "fp8", "weight_scale_inv", "", "", "", 12, 24 * 16 + 12 * 4, 1,
       "13 linears bf16, 1 fp8"}};
  for (const Stored& want : cases) {
    const Opened opened(want.folder);
    const StoredLinear& linear = opened.linear;
    SCOPED_TRACE(want.formats);
    EXPECT_EQ(linear.format, want.format);
    EXPECT_EQ(linear.format_name, want.format_name);
    EXPECT_EQ(std::pair(linear.out_features, linear.in_features), std::pair(std::int64_t{24}, std::int64_t{16}));
    EXPECT_EQ(short_name(linear.weight), "weight");
    EXPECT_EQ(short_name(linear.scales), want.scales);
    EXPECT_EQ(short_name(linear.map), want.map);
    EXPECT_EQ(short_name(linear.nested_scales), want.nested_scales);
    EXPECT_EQ(short_name(linear.nested_map), want.nested_map);
    EXPECT_EQ(linear.num_scales(), want.num_scales);
    EXPECT_EQ(linear.bytes(2), want.bytes);
    EXPECT_EQ(linear.bytes(4), want.format == LinearFormat::kPlain ? 2 * want.bytes : want.bytes);
    EXPECT_EQ(linear.names.size(), want.num_names);
    EXPECT_EQ(linear_formats(opened.config, opened.weights), want.formats);
    EXPECT_EQ(opened.log, "");
    if (want.format != LinearFormat::k4Bit) continue;
    EXPECT_EQ(linear.block_size, 64);
    EXPECT_EQ(linear.nested_block_size, want.nested_map.empty() ? 0 : 256);
    EXPECT_EQ(linear.nested_offset, want.nested_map.empty() ? 0.0F : 0.25F);
  }
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

TEST(StoredLinear, ReadsInt8OfAnyLayoutInRows) {
  QuantisedFolder folder = QuantisedFolder::int8();
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
      EXPECT_EQ(linear.block_rows, expected.block_rows);
      EXPECT_EQ(linear.block_columns, expected.block_columns);
      EXPECT_EQ(linear.num_scales(), expected.num_scales);
      EXPECT_EQ(linear.bytes(2), 24 * 16 + expected.num_scales * 4);
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

TEST(StoredLinear, AcceptsASkippedLinearThatIsQuantisedAllTheSameAndTheConfigOfEarlyVersions) {
  QuantisedFolder folder = QuantisedFolder::four_bit(true);
  folder.config["llm_int8_skip_modules"] = {"lm_head", QuantisedFolder::kLinear};
  EXPECT_EQ(Opened(folder).linear.format_name, "nf4");
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
    testing_support::expect_refused([&] { check_weights(folder.read_config(), folder.write(place.path())); },
                                    std::string(": ") + name, {message});
  }
}

TEST(StoredLinear, IsRefusedByNameWhereItIsNotDecoded) {
  EXPECT_NO_THROW(refuse_quantised(QuantisedFolder().read_config(), "training"));
  testing_support::expect_refused([] { refuse_quantised(QuantisedFolder::four_bit(false).read_config(), "training"); },
                                  "dir/config.json: quantization_config",
                                  {"training of a model stored quantised (bitsandbytes 4-bit (nf4))"});
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

using Folder = QuantisedFolder;
/// What a test changes; most changes are of the part where the refusal is.
using Change = std::function<void(Folder&, const std::string& part)>;

Folder nf4() { return Folder::four_bit(false); }
Folder nested() { return Folder::four_bit(true); }
Folder fp4() { return Folder::four_bit(false, "fp4"); }
Folder int8() { return Folder::int8(); }
Folder blocks() { return Folder::fp8(); }
Folder rows() { return Folder::fp8({24, 1}); }
Folder compressed() { return Folder::compressed(); }

Change missing() {
  return [](Folder& f, const std::string& part) { f.remove(part); };
}
Change shape(const Folder::Shape& shape) {
  return [=](Folder& f, const std::string& part) { f.reshape(part, shape); };
}
Change dtype(DType dtype) {
  return [=](Folder& f, const std::string& part) { f.retype(part, dtype); };
}
Change tensor(DType dtype, const Folder::Shape& shape) {
  return [=](Folder& f, const std::string& part) { f.part(part, dtype, shape); };
}
Change value(std::size_t i, float value) {
  return [=](Folder& f, const std::string& part) { f.set_float(part, i, value); };
}
/// A key of the quant_state.
Change state(const nlohmann::json& value) {
  return [=](Folder& f, const std::string& part) { f.state[part.substr(part.rfind(' ') + 1)] = value; };
}
Change no_state() {
  return [](Folder& f, const std::string& part) { f.state.erase(part.substr(part.rfind(' ') + 1)); };
}
#define SPOIL(...) [](Folder& f, const std::string&) { __VA_ARGS__; }

struct Malformed {
  Folder (*make)();
  const char* where;  ///< what it ends in; a part of the linear
  Change spoil;
  const char* message;  ///< what it contains
};

void expect_all_refused(const std::vector<Malformed>& cases) {
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(std::string(malformed.where) + ": " + malformed.message);
    const testing_support::TemporaryFolder place;
    QuantisedFolder folder = malformed.make();
    const std::string where = malformed.where;
    malformed.spoil(folder, where);
    const bool is_part = where.find(':') == std::string::npos && !where.starts_with("__");
    const std::string expected =
        is_part ? (place / "model.safetensors").string() + ": " + QuantisedFolder::full(where) : where;
    testing_support::expect_refused(
        [&] {
          const ModelConfig config = folder.read_config();
          check_weights(config, folder.write(place.path()));
        },
        expected, {malformed.message}, ExitCode::kFormat, 500);
  }
}

TEST(MalformedQuantisedFolder, RefusesMalformedPartsOf4BitWeights) {
  expect_all_refused(
      {{nf4, "weight", SPOIL(f.state = nullptr; f.remove("weight.absmax"); f.remove("weight.quant_map")),
        "is U8 [192, 1] without scales"},
       {nf4, "weight",
        SPOIL(f.state = nullptr; f.remove("weight.absmax"); f.remove("weight.quant_map");
              f.part("weight", DType::kBF16, {96, 1})),
        "is BF16 [96, 1] without scales"},
       {nf4, "weight.quant_state.bitsandbytes__nf4", SPOIL(f.state = nullptr), "the tensor is missing"},
       {nf4, "weight.absmax", missing(), "the tensor is missing"},
       {nf4, "weight.quant_map", missing(), "the tensor is missing"},
       {nested, "weight.nested_absmax", missing(), "the tensor is missing"},
       {nested, "weight.nested_quant_map", missing(), "the tensor is missing"},
       {nf4, "weight.quant_state.bitsandbytes__nf4", SPOIL(f.part("weight.nested_absmax", DType::kF32, {1})),
        "has no nested_blocksize"},
       {nf4, "weight.absmax", shape({5}), "is F32 [5]; a scale for each 64 weights, F32 [6] was expected"},
       {nf4, "weight.absmax", shape({6, 1}), "is F32 [6, 1]"},
       {nf4, "weight.absmax", dtype(DType::kBF16), "F32 [6] was expected"},
       {nf4, "weight.absmax", dtype(DType::kU8), "is U8 [6]"},
       {nested, "weight.absmax", dtype(DType::kF32), "a code for each 64 weights, U8 [6] was expected"},
       {nested, "weight.nested_absmax", shape({2}), "F32 [1] was expected"},
       {nested, "weight.nested_absmax", dtype(DType::kU8), "is U8 [1]"},
       {nf4, "weight.quant_map", shape({15}), "F32 [16] was expected"},
       {nf4, "weight.quant_map", dtype(DType::kBF16), "is BF16 [16]"},
       {nested, "weight.nested_quant_map", shape({16}), "F32 [256] was expected"},
       {nf4, "weight.absmax", value(5, kNan), "value 5 is NaN or infinity"},
       {nf4, "weight.absmax", value(0, -kInfinity), "value 0 is NaN"},
       {nf4, "weight.quant_map", value(15, kNan), "value 15"},
       {nested, "weight.nested_absmax", value(0, kNan), "every scale must be finite"},
       {nested, "weight.nested_quant_map", value(255, kInfinity), "value 255"},
       {nf4, "weight", shape({191, 1}), "is U8 [191, 1]; 4-bit weights of [24, 16] are packed to U8 [192, 1]"},
       {nf4, "weight", shape({1, 192}), "U8 [192, 1]"},
       {nf4, "weight", tensor(DType::kBF16, {24, 16}), "is BF16 [24, 16]"}});
}

TEST(MalformedQuantisedFolder, RefusesMalformedQuantStates) {
  expect_all_refused(
      {{nf4, "__nf4: blocksize", state(48), "is 48; a power of two from 32 to 4096"},
       {nf4, "__nf4: blocksize", state(16), "is 16"},
       {nf4, "__nf4: blocksize", state(8192), "is 8192"},
       {nf4, "__nf4: blocksize", state(0), "is 0"},
       {nf4, "__nf4: blocksize", state("64"), "a whole number"},
       {nested, "__nf4: nested_blocksize", state(100), "is 100"},
       {nf4, "weight.absmax", SPOIL(f.state["blocksize"] = 128), "a scale for each 128 weights, F32 [3] was expected"},
       {nf4, "__nf4: dtype", state("int32"), "\"int32\" is not supported"},
       {nested, "__nf4: nested_dtype", state("uint8"), "expected float32"},
       {nf4, "__nf4: shape", state({16, 24}), "is [16, 24] but dir/config.json asks for [24, 16]"},
       {nf4, "__nf4: shape", state({384}), "is [384]"},
       {nf4, "__nf4: shape", state(nullptr), "is missing from the quant_state"},
       {nf4, "__nf4: blocksize", no_state(), "is missing"},
       {nf4, "__nf4: group", state(1), "is not a key of a quant_state"},
       {nf4, "__nf4: quant_type", state("fp4"), "is not nf4, which the name of the tensor says"},
       {nf4, "__nf4: quant_type", state("af4"), "\"af4\" is not supported"},
       {nf4, "__nf4: dtype", no_state(), "is missing from the quant_state"},
       {nf4, "__nf4: quant_type", no_state(), "is missing from the quant_state"},
       {nf4, "__nf4: nested_blocksize", SPOIL(f.state["nested_offset"] = 0.5), "is missing from the quant_state"},
       {nested, "__nf4: nested_offset", no_state(), "is missing"},
       {nested, "__nf4: nested_offset", state(1e300), "beyond fp32"},
       {nested, "__nf4", SPOIL(f.state = R"({"quant_type": "nf4", "nested_offset": NaN})"), "is not a JSON object"},
       {nf4, "__nf4", SPOIL(f.state = "{\"quant_type\": \"nf4"), "is not a JSON object"},
       {nf4, "__nf4", SPOIL(f.state = "\xFF\x01\x02"), "is not a JSON object"},
       {nf4, "__nf4", SPOIL(f.state = std::string(1'000'000, '[')), "of at most 4096 bytes"},
       {nf4, "__nf4", SPOIL(f.state = ""), "is not a JSON object"},
       {nf4, "__nf4", SPOIL(f.state = nullptr; f.part(f.state_name, DType::kF32, {8})),
        "the JSON of a quant_state as bytes, U8"},
       {nf4, "__fp4", SPOIL(f.part("weight.quant_state.bitsandbytes__fp4", DType::kU8, {2})),
        "is present together with"}});
}

TEST(MalformedQuantisedFolder, RefusesMalformedInt8AndFp8) {
  expect_all_refused(
      {{int8, "SCB", missing(), "the tensor is missing"},
       {int8, "weight", SPOIL(f.remove("SCB"); f.remove("weight_format")), "is I8 [24, 16] without scales"},
       {int8, "SCB", shape({16}), "is F32 [16]; a scale for each row, F32 [24]"},
       {int8, "SCB", dtype(DType::kF16), "is F16 [24]"},
       {int8, "SCB", value(23, kNan), "value 23"},
       {int8, "weight_format", SPOIL(f.bytes("weight_format")[0] = 3),
        "only int8 weights in rows are supported, as bitsandbytes 0.45 saves them"},
       {int8, "weight_format", dtype(DType::kI64), "is I64"},
       {int8, "weight", shape({16, 24}), "I8 [24, 16] was expected"},
       {int8, "weight", dtype(DType::kU8), "is U8 [24, 16]"},
       {int8, "weight", dtype(DType::kBF16), "I8 [24, 16] was expected"},
       {blocks, "weight", SPOIL(f.remove("weight_scale_inv")), "is F8_E4M3 [24, 16] without scales"},
       {blocks, "weight_scale", tensor(DType::kF32, {6, 2}), "is present together with"},
       {blocks, "weight", dtype(DType::kF8E5M2), "has dtype F8_E5M2"},
       {blocks, "weight", dtype(DType::kF8E4M3Fnuz), "only F8_E4M3 weights are supported"},
       {blocks, "weight", SPOIL(f.retype("weight", DType::kF8E5M2); f.remove("weight_scale_inv")),
        "is F8_E5M2 [24, 16] without scales"},
       {blocks, "weight", shape({16, 24}), "has shape [16, 24]"},
       {blocks, "weight_scale_inv", shape({2, 6}), "[6, 2] was expected"},
       {blocks, "weight_scale_inv", shape({24, 1}), "has shape [24, 1]"},
       {rows, "weight_scale_inv", shape({6, 2}), "[] or [1] or [1, 1] or [24] or [24, 1] was expected"},
       {rows, "weight_scale_inv", shape({1, 16}), "has shape [1, 16]"},
       {rows, "weight_scale_inv", dtype(DType::kF16), "is F16 [24, 1]"},
       {blocks, "weight_scale_inv", value(11, kInfinity), "value 11"},
       {compressed, "weight_scale", SPOIL(f.bytes("weight_scale")[46] = '\xC0'; f.bytes("weight_scale")[47] = '\x7F'),
        "value 23"},
       {blocks, "weight_scale_inv",
        SPOIL(f.retype("weight_scale_inv", DType::kF8E8M0); f.bytes("weight_scale_inv")[3] = '\xFF'), "value 3"},
       {nf4, "weight", SPOIL(f.part("SCB", DType::kF32, {24})), "belong to different formats"},
       {nf4, "weight", SPOIL(f = Folder(); f.part("weight", DType::kF64, {24, 16})),
        "is F64 [24, 16] without scales; expected [24, 16] in F32"}});
}

TEST(MalformedQuantisedFolder, RefusesTensorsThatContradictConfigJson) {
  expect_all_refused(
      {{nf4, "weight", SPOIL(f.config.clear()),
        "is stored as nf4, but dir/config.json has no quantization_config: config and weights do not belong together"},
       {nf4, "weight", SPOIL(f.config = blocks().config), "quantization_config says fp8"},
       {nf4, "weight", SPOIL(f.config["bnb_4bit_quant_type"] = "fp4"),
        "is stored as nf4, but dir/config.json: quantization_config says bitsandbytes 4-bit (fp4)"},
       {fp4, "weight", SPOIL(f.config["bnb_4bit_quant_type"] = "nf4"), "is stored as fp4"},
       {nf4, "weight", SPOIL(f.config = int8().config), "says bitsandbytes 8-bit"},
       {int8, "weight", SPOIL(f.config = nf4().config), "is stored as int8"},
       {blocks, "weight", SPOIL(f.config = nf4().config), "is stored as fp8"},
       {nf4, "dir/config.json: quantization_config", SPOIL(const auto said = f.config; f = Folder(); f.config = said),
        "every linear of the weights is plain"}});
}

struct BadConfig {
  Folder (*make)();
  const char* pointer;  ///< of the key that is changed
  nlohmann::json value;
  const char* message;
  const char* where = nullptr;  ///< if it is another one that is named
};

TEST(QuantizationConfig, RefusesByNameWhatItCannotDecode) {
  const nlohmann::json none;
  const BadConfig cases[] = {
      {nf4, "/quant_method", "gptq", "\"gptq\" are not supported: use the unquantised model", ""},
      {nf4, "/quant_method", "mxfp4", "\"mxfp4\"", ""},
      {nf4, "", {{"bits", 4}}, "quant_method is missing"},
      {nf4, "/load_in_8bit", true, "must be true, not both", ".load_in_4bit"},
      {nf4, "/load_in_4bit", false, "must be true, not neither"},
      {nf4, "/load_in_4bit", 1, "true or false was expected"},
      {nf4, "/bnb_4bit_quant_type", "int4", "expected nf4 or fp4"},
      {nf4, "/llm_int8_skip_modules", "lm_head", "a list of strings"},
      {blocks, "/fmt", "e5m2", "\"e5m2\" is not supported; expected e4m3"},
      {blocks, "/weight_block_size", 128, "expected two sizes"},
      {blocks, "/weight_block_size", {128, 0}, "expected two sizes"},
      {blocks, "/weight_block_size", {128, "128"}, "a whole number"},
      {compressed, "/format", "pack-quantized", "\"pack-quantized\" is not supported"},
      {compressed, "/config_groups", none, "names no scheme"},
      {compressed, "/config_groups/group_0", none, "a scheme"},
      {compressed, "/config_groups/group_0/weights", none, "a weight scheme"},
      {compressed, "/config_groups/group_0/weights/type", "int", "is int; for compressed"},
      {compressed, "/config_groups/group_0/weights/num_bits", 4, "is 4;"},
      {compressed, "/config_groups/group_0/weights/symmetric", false, "is false;"},
      {compressed, "/config_groups/group_0/weights/dynamic", true, "is true;"},
      {compressed, "/config_groups/group_0/weights/actorder", "group", "not supported"},
      {compressed, "/config_groups/group_0/weights/strategy", "group", "\"group\""},
      {compressed, "/config_groups/group_0/weights/strategy", "block", "two sizes",
       ".config_groups.group_0.weights.block_structure"},
      {compressed, "/sparsity_config/format", "sparse-24-bitmask", "sparse weights"},
      {compressed, "/transform_config", {{"R1", 1}}, "transformed weights"}};
  for (const BadConfig& bad : cases) {
    QuantisedFolder folder = bad.make();
    folder.config[nlohmann::json::json_pointer(bad.pointer)] = bad.value;
    SCOPED_TRACE(folder.config.dump());
    std::string where = bad.where != nullptr ? bad.where : bad.pointer;
    std::replace(where.begin(), where.end(), '/', '.');
    testing_support::expect_refused([&] { folder.read_config(); }, "dir/config.json: quantization_config" + where,
                                    {bad.message});
  }
}

#undef SPOIL

}  // namespace
}  // namespace lora_train::model
