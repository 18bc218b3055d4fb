// Keys as written by transformers (utils/quantization_config.py) and compressed-tensors (QuantizationConfig).
#include "quantization_config.h"

namespace lora_train::model {
namespace {

constexpr const char* kKey = "quantization_config";
constexpr const char* kSupported =
    "use the unquantised model, or one quantised by bitsandbytes (nf4, fp4, int8) or to FP8 (e4m3)";
constexpr std::int64_t kMaxBlock = std::int64_t{1} << 22;

bool is_true(const ConfigReader& reader, const char* key) { return reader.is_given(key) && reader.boolean(key, false); }

/// Files of early versions say load_in_4bit or load_in_8bit alone.
std::string method_of(const ConfigReader& quantization) {
  if (quantization.is_given("quant_method")) return quantization.text("quant_method", "");
  if (is_true(quantization, "load_in_4bit") || is_true(quantization, "load_in_8bit")) return "bitsandbytes";
  return "";
}

QuantizationConfig read_bitsandbytes(const ConfigReader& reader) {
  const bool is_4bit = is_true(reader, "load_in_4bit") || is_true(reader, "_load_in_4bit");
  const bool is_8bit = is_true(reader, "load_in_8bit") || is_true(reader, "_load_in_8bit");
  if (is_4bit == is_8bit) {
    reader.reject("load_in_4bit", std::string(is_4bit ? "load_in_4bit and load_in_8bit are both true"
                                                      : "neither load_in_4bit nor load_in_8bit is true") +
                                      "; one of them says how the weights are stored");
  }
  QuantizationConfig config;
  config.method = is_4bit ? QuantMethod::kBnb4Bit : QuantMethod::kBnb8Bit;
  config.description = is_4bit ? "bitsandbytes 4-bit" : "bitsandbytes 8-bit";
  if (is_4bit && reader.is_given("bnb_4bit_quant_type")) {
    config.quant_type = reader.text("bnb_4bit_quant_type", "");
    if (config.quant_type != "nf4" && config.quant_type != "fp4") {
      reader.reject("bnb_4bit_quant_type", "\"" + config.quant_type + "\" is not supported; expected nf4 or fp4");
    }
    config.description += " (" + config.quant_type + ")";
  }
  (void)reader.optional_texts("llm_int8_skip_modules");  // the tensors tell which linears are plain
  return config;
}

void read_block(const ConfigReader& reader, const char* key, QuantizationConfig& config) {
  const auto sizes = reader.ids(key);
  bool is_good = sizes.size() == 2;
  for (const std::int64_t size : sizes) is_good = is_good && size >= 1 && size <= kMaxBlock;
  if (!is_good) reader.reject(key, "two sizes were expected, of rows and of columns, as in [128, 128]");
  const bool is_other = config.block_rows != 0 && (config.block_rows != sizes[0] || config.block_columns != sizes[1]);
  if (is_other) reader.reject(key, "differs from that of another group; one block size for all linears is supported");
  config.block_rows = sizes[0];
  config.block_columns = sizes[1];
}

QuantizationConfig read_fp8(const ConfigReader& reader) {
  QuantizationConfig config;
  config.method = QuantMethod::kFp8;
  config.description = "fp8";
  if (reader.is_given("fmt") && reader.text("fmt", "") != "e4m3") {
    reader.reject("fmt", "\"" + reader.text("fmt", "") + "\" is not supported; expected e4m3");
  }
  (void)reader.optional_texts("modules_to_not_convert");
  if (reader.is_given("weight_block_size")) {
    read_block(reader, "weight_block_size", config);
    config.has_only_blocks = true;
  } else if (!reader.has("weight_block_size")) {
    config.block_rows = config.block_columns = 128;  // the default; null: no blocks
  }
  return config;
}

/// One entry of config_groups: its weights must mean W = code * scale. How a server quantises activations changes nothing here.
void read_group(const ConfigReader& group, QuantizationConfig& config) {
  const auto weights = group.optional_object("weights");
  if (!weights) group.reject("weights", "a scheme of weights was expected");
  const auto expect = [&](const char* key, const std::string& found, const std::string& expected) {
    if (found == expected) return;
    weights->reject(key, "is " + found + "; of compressed-tensors, only FP8 weights with plain scales are supported (" +
                             expected + " here): " + kSupported);
  };
  expect("type", weights->text("type", "int"), "float");
  expect("num_bits", std::to_string(weights->count("num_bits", 8)), "8");
  expect("symmetric", weights->boolean("symmetric", true) ? "true" : "false", "true");
  expect("dynamic", weights->boolean("dynamic", false) ? "true" : "false", "false");
  if (weights->is_given("actorder")) weights->reject("actorder", std::string("is not supported: ") + kSupported);
  const std::string strategy = weights->is_given("strategy") ? weights->text("strategy", "") : "tensor";
  if (strategy == "block") return read_block(*weights, "block_structure", config);
  if (strategy != "tensor" && strategy != "channel") {
    weights->reject("strategy",
                    "\"" + strategy + "\" is not supported; expected tensor, channel or block: " + kSupported);
  }
}

QuantizationConfig read_compressed_tensors(const ConfigReader& reader) {
  QuantizationConfig config;
  config.method = QuantMethod::kFp8;
  config.description = "compressed-tensors FP8";
  const auto check_format = [](const ConfigReader& at) {
    const std::string format = at.is_given("format") ? at.text("format", "") : "float-quantized";
    if (format == "float-quantized" || format == "naive-quantized") return;
    at.reject("format", "\"" + format + "\" is not supported; expected float-quantized: " + kSupported);
  };
  check_format(reader);
  if (reader.optional_object("transform_config")) {
    reader.reject("transform_config", std::string("transformed weights are not supported: ") + kSupported);
  }
  if (const auto sparsity = reader.optional_object("sparsity_config")) {
    if (sparsity->text("format", "dense") != "dense")
      sparsity->reject("format", std::string("sparse weights are not supported: ") + kSupported);
  }
  const auto groups = reader.optional_object("config_groups");
  if (!groups) reader.reject("config_groups", "names no scheme; expected one of FP8 weights");
  for (const auto& name : groups->keys()) {
    const auto group = groups->optional_object(name.c_str());
    if (!group) groups->reject(name, "a scheme was expected");
    check_format(*group);
    read_group(*group, config);
  }
  (void)reader.optional_texts("ignore");
  return config;
}

}  // namespace

QuantizationConfig read_quantization_config(const ConfigReader& reader) {
  const auto quantization = reader.optional_object(kKey);
  if (!quantization) return {};
  const std::string method = method_of(*quantization);
  if (method == "bitsandbytes") return read_bitsandbytes(*quantization);
  if (method == "fp8") return read_fp8(*quantization);
  if (method == "compressed-tensors") return read_compressed_tensors(*quantization);
  reader.reject(kKey, method.empty()
                          ? std::string("quant_method is missing; expected bitsandbytes, fp8 or "
                                        "compressed-tensors")
                          : "weights stored by quant_method \"" + method + "\" are not supported: " + kSupported);
}

}  // namespace lora_train::model
