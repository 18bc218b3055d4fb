// `init-model`: writes a Hugging Face folder with random weights. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::model {

struct InitModelRequest {
  std::filesystem::path config;     ///< a config.json, or a folder that holds one
  std::filesystem::path tokenizer;  ///< copies the tokenizer files of this folder; empty = none
  std::filesystem::path output_dir;
  std::uint64_t seed = 42;
  storage::DType dtype = storage::DType::kBF16;   ///< kBF16, kF16 or kF32; also written to config.json
  std::uint64_t max_shard_bytes = 5'000'000'000;  ///< tensor data per file; a larger tensor gets its own file
  bool overwrite = false;                         ///< replaces a folder that holds a model and nothing else
};

struct InitModelResult {
  std::int64_t num_parameters = 0;
  std::uint64_t weight_bytes = 0;
  std::vector<std::string> files;  ///< names in the order written; config.json is last
};

/// Draws every linear, embedding and head from an approximate normal distribution (a sum of eight uniforms) with mean 0
/// and standard deviation initializer_range; norms multiply by 1, biases are 0, decay rates as transformers draws them.
/// A value is a function of seed, tensor name and element index only, independent of threads, shards and machine.
/// Throws FormatError for an unsupported config or a folder without tokenizer files, IoError, and ConfigError for an
/// output folder that claim_output() refuses. The folder appears complete or not at all: an older one stays until then.
InitModelResult init_model(const InitModelRequest& request);

/// The value that a new weight of this kind has everywhere; empty: it is drawn.
std::optional<float> constant_start(WeightKind kind, const ModelConfig& config);

/// Appends the index of `files` if `is_sharded`. Returns the bytes of their tensors.
std::uint64_t add_index(std::vector<storage::FileToWrite>& files, bool is_sharded);

/// "bfloat16", "float16" or "float32", as PyTorch calls a dtype.
std::string torch_dtype_name(storage::DType dtype);
/// The text of a config.json with "dtype" (or "torch_dtype", if present) set to `dtype`: BF16, F16 or F32. Everything
/// else keeps its value and order.
std::string config_text_with_dtype(const std::string& text, storage::DType dtype);

/// Elements [begin, begin + count) of a tensor that init_model draws, before rounding to the dtype.
std::vector<float> normal_weights(std::uint64_t seed, const std::string& name, std::int64_t begin, std::int64_t count,
                                  double standard_deviation);

}  // namespace lora_train::model
