// The rows of a matrix on their way into a GGUF file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lora_train/export/gguf_file.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::gguf {

/// A tensor [num_rows, num_columns] to write. `bytes` is packed, F32, F16 or BF16.
struct Rows {
  std::string_view bytes;
  storage::DType dtype = storage::DType::kF32;
  std::int64_t num_rows = 1, num_columns = 0;
  std::int64_t reordered_heads = 0;  ///< see architecture.h
  float offset = 0;                  ///< added to every value
  float factor = 1;                  ///< multiplies every value
};

/// Encodes and writes the rows, a piece at a time. Throws FormatError (name) for NaN or infinity, NumericError for a value that
/// does not fit.
void write_rows(const Rows& rows, const std::string& name, TensorType type, const Tensor::Write& write);

}  // namespace lora_train::gguf
