// A small model folder and an adapter on it, written without torch.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/init_model.h"
#include "lora_train/storage/safetensors.h"
#include "support/safetensors_file.h"

namespace lora_train::testing_support {

struct MergeModelSize {
  std::int64_t hidden_size = 16, intermediate_size = 24, num_layers = 2, vocab_size = 32;
  std::uint64_t max_shard_bytes = 4096;
  storage::DType dtype = storage::DType::kF32;
};

inline void write_merge_model(const std::filesystem::path& folder, const MergeModelSize& size = {}) {
  auto config = nlohmann::json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "torch_dtype": "float32"})");
  config["hidden_size"] = size.hidden_size;
  config["intermediate_size"] = size.intermediate_size;
  config["num_hidden_layers"] = size.num_layers;
  config["vocab_size"] = size.vocab_size;
  const std::filesystem::path source = folder.string() + ".json";
  write_file_atomic(source, config.dump());
  model::InitModelRequest request;
  request.config = source;
  request.output_dir = folder;
  request.dtype = size.dtype;
  request.max_shard_bytes = size.max_shard_bytes;
  model::init_model(request);
  std::filesystem::remove(source);
}

/// Writes the adapter of these options on the model.
inline void write_merge_adapter(const std::filesystem::path& folder, const std::filesystem::path& model,
                                const lora::AdapterConfig& options) {
  const model::ModelConfig config = model::read_model_config(model);
  const auto specs = lora::plan_adapters(options, config);
  std::vector<storage::TensorToWrite> tensors;
  std::vector<std::vector<float>> values;
  values.reserve(2 * specs.size());
  for (const auto& spec : specs) {
    std::vector<std::int64_t> shape;
    for (const auto& tensor : model::expected_tensors(config)) {
      if (tensor.name == model::linear_path(spec) + ".weight") shape = tensor.shape;
    }
    for (const auto& tensor : model::adapter_tensors(spec, shape[1], shape[0])) {
      values.push_back(model::normal_weights(7, tensor.name, 0, tensor.numel(), 0.5));
      tensors.push_back({tensor.name,
                         storage::DType::kF32,
                         tensor.shape,
                         {reinterpret_cast<const char*>(values.back().data()), values.back().size() * 4},
                         nullptr});
    }
  }
  make_folder(folder);
  storage::write_safetensors(folder / "adapter_model.safetensors", tensors);
  lora::AdapterConfig written{options, "", "org/base"};
  written.lora_target_modules = lora::explicit_targets(specs, config);
  write_file_atomic(folder / "adapter_config.json", lora::adapter_config_json(written));
}

}  // namespace lora_train::testing_support
