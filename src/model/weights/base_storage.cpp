#include "lora_train/model/stored_linear.h"

namespace lora_train::model {
namespace {

// What bitsandbytes and DeepSeek use.
constexpr std::int64_t kBlockSize = 64, kNestedBlockSize = 256, kFp8Block = 128;

}  // namespace

std::string describe(const BaseStorage& base) {
  const LinearFormat format = base.empty() ? LinearFormat::kPlain : base.begin()->second.format;
  const char* const form = format == LinearFormat::k4Bit ? "4 bits" : format == LinearFormat::kInt8 ? "int8" : "fp8";
  return std::to_string(base.size()) + " linears in " + form;
}

BaseStorage stored_base(const ModelConfig& config, const storage::WeightFiles& weights) {
  BaseStorage base;
  for (const TensorSpec& spec : linear_tensors(config)) {
    const LinearStorage stored = stored_linear(config, spec, weights);
    if (stored.format != LinearFormat::kPlain) base[spec.module()] = stored;
  }
  return base;
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

}  // namespace lora_train::model
