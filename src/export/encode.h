// Values in the types of a GGUF file.
#pragma once

#include <cstdint>
#include <string>

#include "lora_train/export/gguf_file.h"

namespace lora_train::gguf {

/// kQ8_0: this many values share a scale.
inline constexpr std::int64_t kBlock = 32;

/// Bytes of that many values; of kQ8_0 a multiple of kBlock.
std::uint64_t encoded_bytes(std::int64_t count, TensorType type);

/// Appends the values, rounded to nearest even. kQ8_0: blocks of a F16 scale, the largest magnitude / 127, and 32 signed bytes,
/// value / scale rounded half away from zero (ggml's quantize_row_q8_0_ref). Returns whether all values are finite and fit.
bool encode(const float* values, std::int64_t count, TensorType type, std::string& out);

}  // namespace lora_train::gguf
