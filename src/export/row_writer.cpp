#include "row_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "architecture.h"
#include "encode.h"
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

}  // namespace lora_train::gguf
