#include "enum_names.h"

#include <algorithm>

namespace lora_train {

#define LORA_TRAIN_ENUM_NAMES(E, ...)                     \
  const EnumNames<E>& enum_names(E) {                     \
    static const EnumNames<E> names = {__VA_ARGS__};      \
    return names;                                         \
  }                                                       \
  std::string to_string(E value) {                        \
    for (const auto& [known, name] : enum_names(value)) { \
      if (known == value) return name;                    \
    }                                                     \
    return {};                                            \
  }

LORA_TRAIN_ENUM_NAMES(Device, {Device::kAuto, "auto"}, {Device::kCuda, "cuda"}, {Device::kCpu, "cpu"})
LORA_TRAIN_ENUM_NAMES(AdapterKind, {AdapterKind::kLora, "lora"}, {AdapterKind::kNone, "none"})
LORA_TRAIN_ENUM_NAMES(BasePrecision, {BasePrecision::kBf16, "bf16"}, {BasePrecision::kFp32, "fp32"},
                      {BasePrecision::kNf4, "nf4"}, {BasePrecision::kInt8, "int8"}, {BasePrecision::kFp8, "fp8"})
LORA_TRAIN_ENUM_NAMES(Precision, {Precision::kBf16, "bf16"}, {Precision::kFp32, "fp32"})
LORA_TRAIN_ENUM_NAMES(DatasetType, {DatasetType::kAuto, "auto"}, {DatasetType::kMessages, "messages"},
                      {DatasetType::kPromptCompletion, "prompt_completion"}, {DatasetType::kText, "text"},
                      {DatasetType::kPretokenized, "pretokenized"}, {DatasetType::kSharegpt, "sharegpt"},
                      {DatasetType::kAlpaca, "alpaca"})
LORA_TRAIN_ENUM_NAMES(LossOn, {LossOn::kAuto, "auto"}, {LossOn::kAssistant, "assistant"}, {LossOn::kLast, "last"},
                      {LossOn::kCompletion, "completion"}, {LossOn::kAll, "all"})
LORA_TRAIN_ENUM_NAMES(Overlength, {Overlength::kError, "error"}, {Overlength::kDrop, "drop"},
                      {Overlength::kTruncate, "truncate"})
LORA_TRAIN_ENUM_NAMES(OnBadRow, {OnBadRow::kError, "error"}, {OnBadRow::kDrop, "drop"})
LORA_TRAIN_ENUM_NAMES(TokenInit, {TokenInit::kMean, "mean"}, {TokenInit::kDescription, "description"})
LORA_TRAIN_ENUM_NAMES(OptimizerKind, {OptimizerKind::kAdamwTorch, "adamw_torch"},
                      {OptimizerKind::kAdamwTorchFused, "adamw_torch_fused"}, {OptimizerKind::kAdamw8bit, "adamw_8bit"})
LORA_TRAIN_ENUM_NAMES(SchedulerKind, {SchedulerKind::kLinear, "linear"}, {SchedulerKind::kCosine, "cosine"},
                      {SchedulerKind::kConstant, "constant"},
                      {SchedulerKind::kConstantWithWarmup, "constant_with_warmup"},
                      {SchedulerKind::kCosineWithMinLr, "cosine_with_min_lr"})
LORA_TRAIN_ENUM_NAMES(LrScaling, {LrScaling::kNone, "none"}, {LrScaling::kSqrt, "sqrt"}, {LrScaling::kLinear, "linear"})
LORA_TRAIN_ENUM_NAMES(GradientCheckpointing, {GradientCheckpointing::kAuto, "auto"},
                      {GradientCheckpointing::kOff, "off"}, {GradientCheckpointing::kCheap, "cheap"},
                      {GradientCheckpointing::kGateUp, "gate_up"}, {GradientCheckpointing::kFull, "full"})
LORA_TRAIN_ENUM_NAMES(CudaGraphs, {CudaGraphs::kAuto, "auto"}, {CudaGraphs::kOff, "off"})
LORA_TRAIN_ENUM_NAMES(Tuning, {Tuning::kAuto, "auto"}, {Tuning::kOff, "off"})
LORA_TRAIN_ENUM_NAMES(AttnImplementation, {AttnImplementation::kAuto, "auto"},
                      {AttnImplementation::kReference, "reference"}, {AttnImplementation::kFa2, "fa2"},
                      {AttnImplementation::kCudnn, "cudnn"})
LORA_TRAIN_ENUM_NAMES(KernelSetting, {KernelSetting::kAuto, "auto"}, {KernelSetting::kReference, "reference"},
                      {KernelSetting::kNative, "own"})
LORA_TRAIN_ENUM_NAMES(Reporter, {Reporter::kTensorboard, "tensorboard"})

bool Profile::is_given(const std::string& key) const {
  return std::binary_search(given_keys.begin(), given_keys.end(), key);
}

}  // namespace lora_train
