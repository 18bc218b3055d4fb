// `export --gguf`: a model, with an adapter merged in or without, or an adapter alone, as a file for llama.cpp. No torch.
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
  std::filesystem::path file;     ///< replaced if it is there
  std::filesystem::path model;    ///< Hugging Face folder
  std::filesystem::path adapter;  ///< PEFT folder; empty: the model alone
  std::string name;               ///< general.name
  std::optional<TensorType> type;
  lora::DecodeLinear decode;  ///< of a quantised base; without it, such a base is refused
  /// Called before each tensor with the number done, the number in all, and its name.
  std::function<void(std::int64_t num_done, std::int64_t num_tensors, std::string_view name)> progress;
};

struct ExportResult {
  std::int64_t num_tensors = 0;
  std::int64_t num_merged = 0;
  std::uint64_t num_bytes = 0;
  TensorType type = TensorType::kF32;
  std::int64_t num_other_type = 0;  ///< matrices that Q8_0 cannot hold, whose rows are no multiple of 32: F16
};

/// The model with the adapter merged in, computed in fp32 and rounded once. Norms and biases are F32. Without a type: that in
/// which the model is stored (of a quantised one BF16). Takes twice the memory of the largest tensor. Throws FormatError for a
/// model, tokenizer or adapter that is damaged, or not supported here or by llama.cpp; NumericError for a value beyond what the type can hold;
/// IoError, StopError.
ExportResult export_model(const ExportRequest& request);

/// The adapter as llama.cpp's --lora takes it. Its one alpha is that of the first linear; where the scale of another linear is not
/// alpha / its rank, B is multiplied. F32 (default) or F16. Reads of the model only config.json. Throws ConfigError for another type;
/// FormatError for trained token rows, and as above.
ExportResult export_adapter(const ExportRequest& request);

}  // namespace lora_train::gguf
