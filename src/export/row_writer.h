// The rows of a matrix on their way into a GGUF file, encoded as its types are.
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

/// kQ8_0: this many values share a scale.
inline constexpr std::int64_t kBlock = 32;

/// Bytes of that many values; of kQ8_0 a multiple of kBlock.
std::uint64_t encoded_bytes(std::int64_t count, TensorType type);

/// Appends the values, rounded to nearest even. kQ8_0: blocks of a F16 scale, the largest magnitude / 127, and 32 signed bytes,
/// value / scale rounded half away from zero (ggml's quantize_row_q8_0_ref). Returns whether all values are finite and fit.
bool encode(const float* values, std::int64_t count, TensorType type, std::string& out);

}  // namespace lora_train::gguf
