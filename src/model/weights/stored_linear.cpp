#include "lora_train/model/weights/stored_linear.h"

#include <algorithm>

#include "linear_reader.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {

std::int64_t LinearStorage::num_scales() const {
  switch (format) {
    case LinearFormat::kPlain: return 0;
    case LinearFormat::k4Bit: return ceil_div(out_features * in_features, block_size);
    case LinearFormat::kInt8: return out_features;
    case LinearFormat::kFp8: return ceil_div(out_features, block_rows) * ceil_div(in_features, block_columns);
  }
  return 0;
}

std::int64_t LinearStorage::bytes(std::int64_t plain_element_bytes) const {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t num_weights = out_features * in_features;
  if (format == LinearFormat::kPlain) return num_weights * plain_element_bytes;
  if (format != LinearFormat::k4Bit) return num_weights + num_scales() * kFloat;
  const std::int64_t codes = ceil_div(num_weights, 2) + kMapSize * kFloat;
  if (nested_block_size == 0) return codes + num_scales() * kFloat;
  return codes + num_scales() + (ceil_div(num_scales(), nested_block_size) + kNestedMapSize) * kFloat;
}

namespace {

// The values of bitsandbytes and DeepSeek.
constexpr std::int64_t kBlockSize = 64, kNestedBlockSize = 256, kFp8Block = 128;

LinearFormat linear_format(BasePrecision precision) {
  switch (precision) {
    case BasePrecision::kInt8: return LinearFormat::kInt8;
    case BasePrecision::kFp8: return LinearFormat::kFp8;
    default: return LinearFormat::k4Bit;
  }
}

}  // namespace

std::string describe(const BaseStorage& base) {
  const LinearFormat format = base.empty() ? LinearFormat::kPlain : base.begin()->second.format;
  const char* const form = format == LinearFormat::k4Bit ? "4 bits" : format == LinearFormat::kInt8 ? "int8" : "fp8";
  return fmt::format("{} linears in {}", base.size(), form);
}

BaseStorage stored_base(const ModelConfig& config, const storage::WeightFiles& weights) {
  BaseStorage base;
  for (const TensorSpec& spec : linear_tensors(config)) {
    const LinearStorage stored = stored_linear(config, spec, weights);
    if (stored.format != LinearFormat::kPlain) base[spec.module()] = stored;
  }
  return base;
}

bool has_bf16_matrices(const ModelConfig& config, const storage::WeightFiles& weights) {
  return std::ranges::all_of(expected_tensors(config), [&](const TensorSpec& spec) {
    const bool is_matrix = spec.kind != WeightKind::kNorm && spec.kind != WeightKind::kBias;
    const storage::TensorEntry* const entry = weights.find(spec.name);
    return !is_matrix || (entry != nullptr && entry->dtype == storage::DType::kBF16);
  });
}

LinearStorage quantised_storage(LinearFormat format, std::int64_t out_features, std::int64_t in_features, bool nested) {
  LinearStorage storage{.format = format, .out_features = out_features, .in_features = in_features};
  if (format == LinearFormat::k4Bit) {
    storage.block_size = kBlockSize;
    storage.nested_block_size = nested ? kNestedBlockSize : 0;
  } else if (format == LinearFormat::kFp8) {
    storage.block_rows = storage.block_columns = kFp8Block;
  }
  return storage;
}

BaseStorage base_storage(const ModelSection& section, const ModelConfig& config, const storage::WeightFiles& weights) {
  check_weights(config, weights);
  BaseStorage stored = stored_base(config, weights);
  if (!section.is_quantised()) return stored;
  const LinearFormat requested = linear_format(section.base_precision);
  for (const auto& [name, storage] : stored) {
    if (storage.format == requested) continue;
    throw ConfigError("base_precision", config.path.parent_path().string() + " is quantised already (" +
                                            config.quantization.description + ": " + name +
                                            "), and is not converted to " + to_string(section.base_precision) +
                                            "; remove base_precision, or use a folder that is not quantised");
  }
  if (!stored.empty()) return stored;  // linears that such a folder leaves plain are plain on purpose
  return base_storage(section, config);
}

BaseStorage base_storage(const ModelSection& section, const ModelConfig& config) {
  BaseStorage kept;
  if (!section.is_quantised()) return kept;
  const LinearFormat format = linear_format(section.base_precision);
  for (const auto& spec : linear_tensors(config)) {
    kept[spec.module()] = quantised_storage(format, spec.shape[0], spec.shape[1], section.double_quant);
  }
  return kept;
}

}  // namespace lora_train::model
