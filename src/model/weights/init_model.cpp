#include "lora_train/model/weights/init_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/half.h"
#include "lora_train/base/philox.h"
#include "lora_train/base/text.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::model {
namespace {

namespace fs = std::filesystem;
using storage::DType;

void store(const std::vector<float>& values, DType dtype, char* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(out + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t half = dtype == DType::kBF16 ? to_bf16(values[i]) : to_f16(values[i]);
      std::memcpy(out + 2 * i, &half, 2);
    }
  }
}

/// log of uniform numbers from 0.01 to 16, as transformers draws A_log.
std::vector<float> decay_rates(const TensorSpec& spec, std::uint64_t seed) {
  const PhiloxKey key = philox_key(seed, RandomPurpose::kModelInit, spec.name);
  std::vector<float> values;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(spec.shape[0]); ++i) {
    const double uniform = philox4x32({i, 0, 0, 0}, key)[0] / 4294967296.0;
    values.push_back(static_cast<float>(std::log(0.01 + uniform * (16 - 0.01))));
  }
  return values;
}

std::string draw(const TensorSpec& spec, const InitModelRequest& request, const ModelConfig& config) {
  const auto num_bytes = storage::tensor_bytes(request.dtype, spec.shape);
  const std::size_t element_bytes = static_cast<std::size_t>(storage::dtype_bits(request.dtype)) / 8;
  const auto count = static_cast<std::int64_t>(num_bytes / element_bytes);
  std::string bytes(num_bytes, '\0');
  if (spec.kind == WeightKind::kDecayRate) {
    store(decay_rates(spec, request.seed), request.dtype, bytes.data());
    return bytes;
  }
  if (const auto constant = constant_start(spec.kind, config)) {
    store(std::vector<float>(static_cast<std::size_t>(count), *constant), request.dtype, bytes.data());
    return bytes;
  }
  constexpr std::int64_t kPiece = 1 << 16;
  const std::int64_t num_threads = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 16);
  const auto work = [&](std::int64_t first) {
    for (std::int64_t begin = first * kPiece; begin < count; begin += num_threads * kPiece) {
      const auto values =
          normal_weights(request.seed, spec.name, begin, std::min(kPiece, count - begin), config.initializer_range);
      store(values, request.dtype, bytes.data() + static_cast<std::size_t>(begin) * element_bytes);
    }
  };
  std::vector<std::jthread> threads;
  for (std::int64_t i = 1; i < num_threads && i * kPiece < count; ++i) threads.emplace_back(work, i);
  work(0);
  threads.clear();
  return bytes;
}

using Shards = std::vector<std::vector<TensorSpec>>;

Shards split_into_shards(const std::vector<TensorSpec>& specs, const InitModelRequest& request) {
  Shards shards(1);
  std::uint64_t filled = 0;
  for (const auto& spec : specs) {
    const std::uint64_t size = storage::tensor_bytes(request.dtype, spec.shape);
    if (!shards.back().empty() && filled + size > request.max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(spec);
    filled += size;
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return storage::kWeightsFile;
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

using Files = std::vector<storage::FileToWrite>;

/// The name in the files of the class.
std::string name_in_files(const ModelConfig& config, const std::string& name) {
  constexpr std::string_view kModel = "model.", kInside = "language_model.";
  if (name.starts_with(kModel)) return config.file_prefix + name.substr(kModel.size());
  return config.file_prefix.starts_with(kInside) ? fmt::format("{}{}", kInside, name) : name;
}

/// The weights. Tensors are drawn when they are written, one at a time.
Files weight_files(const ModelConfig& config, const InitModelRequest& request) {
  const Shards shards = split_into_shards(expected_tensors(config), request);
  const auto buffer = std::make_shared<std::string>();
  Files files;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    files.push_back({shard_name(i, shards.size()), ""});
    for (const auto& spec : shards[i]) {
      files.back().tensors.push_back(
          {name_in_files(config, spec.name), request.dtype, spec.shape, {}, [buffer, spec, &request, &config] {
             *buffer = draw(spec, request, config);
             return std::string_view(*buffer);
           }});
    }
  }
  return files;
}

void add_tokenizer(const fs::path& folder, Files& files) {
  if (folder.empty()) return;
  for (const char* name : storage::kTokenizerFiles) {
    if (fs::exists(folder / name)) files.push_back(storage::copy_of(folder / name));
  }
  storage::copy_tool_template(folder, files);
}

void check_tokenizer(const fs::path& folder) {
  if (folder.empty() || storage::holds_tokenizer(folder)) return;
  throw FormatError(folder.string(),
                    "holds no tokenizer.json, tokenizer.model or tekken.json; a tokenizer folder was expected");
}

}  // namespace

std::optional<float> constant_start(WeightKind kind, const ModelConfig& config) {
  switch (kind) {
    case WeightKind::kNorm: return static_cast<float>(1 - config.norm_weight_offset);
    case WeightKind::kGatedNorm:
    case WeightKind::kStepBias: return 1.0F;
    case WeightKind::kBias: return 0.0F;
    default: return std::nullopt;
  }
}

std::uint64_t add_index(Files& files, bool is_sharded) {
  std::uint64_t bytes = 0;
  nlohmann::json weight_map;
  for (const storage::FileToWrite& file : files) {
    for (const storage::TensorToWrite& tensor : file.tensors) {
      weight_map[tensor.name] = file.name;
      bytes += storage::tensor_bytes(tensor.dtype, tensor.shape);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(weight_map)}};
  if (is_sharded) files.push_back({storage::kIndexFile, index.dump(2) + "\n"});
  return bytes;
}

std::string torch_dtype_name(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

std::string config_text_with_dtype(const std::string& text, DType dtype) {
  auto document = nlohmann::ordered_json::parse(text);
  const char* key = document.contains("dtype") ? "dtype" : "torch_dtype";
  document[key] = torch_dtype_name(dtype);
  return document.dump(2) + "\n";
}

std::vector<float> normal_weights(std::uint64_t seed, const std::string& name, std::int64_t begin, std::int64_t count,
                                  double standard_deviation) {
  constexpr double kMean = 8 * 32767.5;
  // Variance of a uniform whole number of 16 bits: (2^32 - 1) / 12.
  const double scale = standard_deviation / std::sqrt(8.0 * 4294967295.0 / 12.0);
  const PhiloxKey key = philox_key(seed, RandomPurpose::kModelInit, name);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(begin) + i;
    const auto bits =
        philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}, key);
    std::uint32_t sum = 0;
    for (const std::uint32_t word : bits) sum += (word & 0xFFFF) + (word >> 16);
    values[i] = static_cast<float>((sum - kMean) * scale);
  }
  return values;
}

InitModelResult init_model(const InitModelRequest& request) {
  if (request.dtype != DType::kBF16 && request.dtype != DType::kF16 && request.dtype != DType::kF32) {
    throw ConfigError("dtype",
                      std::string(storage::dtype_name(request.dtype)) + " is not supported; expected BF16, F16 or F32");
  }
  const fs::path config_path =
      fs::is_directory(request.config) ? request.config / storage::kConfigFile : request.config;
  const std::string text = storage::read_model_text(config_path);
  const ModelConfig config = parse_model_config(text, config_path);
  check_tokenizer(request.tokenizer);
  // Config and tokenizer may be in the folder itself: they are read before it is replaced.
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kModel, {}, request.overwrite);

  InitModelResult result;
  result.num_parameters = num_parameters(config);
  Files files = weight_files(config, request);
  result.weight_bytes = add_index(files, files.size() > 1);
  add_tokenizer(request.tokenizer, files);
  files.push_back({storage::kConfigFile, config_text_with_dtype(text, request.dtype)});
  output.write(files);
  output.commit();
  for (const auto& file : files) result.files.push_back(file.name);
  return result;
}

}  // namespace lora_train::model
