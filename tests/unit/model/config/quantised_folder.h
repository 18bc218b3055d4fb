// A small model folder of which one linear is quantised, and whatever a test changes in it.
#pragma once

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config_text.h"
#include "lora_train/storage/model_weights.h"
#include "support/temporary_folder.h"

namespace lora_train::model {

inline std::string float_bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// The model of config_text; model.layers.1.mlp.up_proj, [24, 16], is quantised, all else is BF16 zeros.
class QuantisedFolder {
 public:
  static constexpr const char* kLinear = "model.layers.1.mlp.up_proj";
  static constexpr std::int64_t kRows = 24, kColumns = 16;
  using DType = storage::DType;
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

}  // namespace lora_train::model
