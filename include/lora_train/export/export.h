// `export --gguf`: writes a model, with or without a merged adapter, or an adapter alone, for llama.cpp. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lora_train/export/gguf_file.h"
#include "lora_train/lora/merged_weights.h"

namespace lora_train::gguf {

struct ExportRequest {
  std::filesystem::path file;     ///< replaced if it exists
  std::filesystem::path model;    ///< Hugging Face folder
  std::filesystem::path adapter;  ///< PEFT folder; empty: the model alone
  std::string name;               ///< general.name
  std::optional<TensorType> type;
  ModelSection onto;          ///< as in lora::MergeRequest
  lora::DecodeLinear decode;  ///< decodes a quantised base; without it, such a base is refused
  /// Called before each tensor with the number done, the number in all, and its name.
  std::function<void(std::int64_t num_done, std::int64_t num_tensors, std::string_view name)> progress;
};

struct ExportResult {
  std::int64_t num_tensors = 0;
  std::int64_t num_merged = 0;
  std::uint64_t num_bytes = 0;
  TensorType type = TensorType::kF32;
  std::int64_t num_other_type = 0;  ///< matrices written as F16: Q8_0 needs rows that are a multiple of 32
};

/// Writes the model with the adapter merged in, computed in fp32 and rounded once. Norms and biases are F32. The
/// default type is that of the stored model (BF16 if it is quantised). Takes twice the memory of the largest tensor.
/// Throws FormatError for a model, tokenizer or adapter that is damaged or that this program or llama.cpp does not
/// support; NumericError for a value beyond the type's range; IoError, StopError.
ExportResult export_model(const ExportRequest& request);

/// Writes the adapter for llama.cpp's --lora. Its one alpha is that of the first linear; B is multiplied if another
/// linear's scale is not alpha / its rank. F32 (default) or F16. Reads only config.json of the model. Throws
/// ConfigError for another type, FormatError for trained token rows, and as above.
ExportResult export_adapter(const ExportRequest& request);

}  // namespace lora_train::gguf
