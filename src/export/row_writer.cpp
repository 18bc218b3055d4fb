#include "row_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "architecture.h"
#include "lora_train/base/error.h"
#include "lora_train/base/half.h"

namespace lora_train::gguf {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;

void read_row(const Rows& rows, std::int64_t row, std::vector<float>& values) {
  const auto size = static_cast<std::size_t>(storage::dtype_bits(rows.dtype)) / 8;
  const char* from = rows.bytes.data() + static_cast<std::size_t>(row * rows.num_columns) * size;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (rows.dtype == storage::DType::kF32) {
      std::memcpy(&values[i], from + i * size, size);
      continue;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + i * size, size);
    values[i] = rows.dtype == storage::DType::kBF16 ? from_bf16(bits) : from_f16(bits);
  }
}

[[noreturn]] void refuse_row(const std::vector<float>& values, const std::string& name, TensorType type) {
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    throw FormatError(name, "holds NaN or infinity: the file is damaged");
  }
  throw NumericError(name, "holds a value beyond what " + std::string(type_name(type)) +
                               " can hold; pass --type f32, which holds every value");
}

constexpr std::int64_t kBlockBytes = 2 + kBlock;

void append(const void* bytes, std::size_t size, std::string& out) {
  out.append(static_cast<const char*>(bytes), size);
}

/// Whether the bits are neither infinity nor NaN.
bool is_finite_f16(std::uint16_t bits) { return (bits & 0x7C00) != 0x7C00; }
bool is_finite_bf16(std::uint16_t bits) { return (bits & 0x7F80) != 0x7F80; }

bool encode_block(const float* values, std::string& out) {
  float largest = 0;
  bool is_finite = true;
  for (std::int64_t i = 0; i < kBlock; ++i) {
    is_finite = is_finite && std::isfinite(values[i]);
    largest = std::max(largest, std::fabs(values[i]));
  }
  const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
  const std::uint16_t bits = to_f16(scale);
  if (!is_finite || !is_finite_f16(bits)) return false;
  append(&bits, sizeof(bits), out);
  for (std::int64_t i = 0; i < kBlock; ++i) {
    out += static_cast<char>(static_cast<std::int8_t>(std::round(values[i] * inverse)));
  }
  return true;
}

}  // namespace

void write_rows(const Rows& rows, const std::string& name, TensorType type, const Tensor::Write& write) {
  std::vector<float> values(static_cast<std::size_t>(rows.num_columns));
  std::string piece;
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    read_row(rows, source_row(row, rows.num_rows, rows.reordered_heads), values);
    if (rows.offset != 0 || rows.factor != 1) {
      std::ranges::transform(values, values.begin(), [&](float value) { return value * rows.factor + rows.offset; });
    }
    if (!encode(values.data(), rows.num_columns, type, piece)) {
      refuse_row(values, name, type);
    }
    if (piece.size() < kPieceBytes) continue;
    write(piece);
    piece.clear();
  }
  write(piece);
}

std::uint64_t encoded_bytes(std::int64_t count, TensorType type) {
  switch (type) {
    case TensorType::kF32: return static_cast<std::uint64_t>(count) * 4;
    case TensorType::kQ8_0: return static_cast<std::uint64_t>(count / kBlock * kBlockBytes);
    case TensorType::kF16:
    case TensorType::kBF16: return static_cast<std::uint64_t>(count) * 2;
  }
  return 0;
}

bool encode(const float* values, std::int64_t count, TensorType type, std::string& out) {
  if (type == TensorType::kF32) {
    append(values, static_cast<std::size_t>(count) * sizeof(float), out);
    return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
  }
  if (type == TensorType::kQ8_0) {
    for (std::int64_t i = 0; i < count; i += kBlock) {
      if (!encode_block(values + i, out)) return false;
    }
    return true;
  }
  bool is_finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = type == TensorType::kF16 ? to_f16(values[i]) : to_bf16(values[i]);
    is_finite = is_finite && (type == TensorType::kF16 ? is_finite_f16(bits) : is_finite_bf16(bits));
    append(&bits, sizeof(bits), out);
  }
  return is_finite;
}

}  // namespace lora_train::gguf
