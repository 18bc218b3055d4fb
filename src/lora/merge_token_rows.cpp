#include "merge_token_rows.h"

#include <algorithm>

namespace lora_train::lora {
namespace {

std::size_t bytes_of(std::int64_t elements, storage::DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(storage::dtype_bits(dtype)) / 8;
}

/// Summed in fp64, a piece at a time.
std::vector<float> mean_of_rows(const WeightToMerge& weight) {
  constexpr std::int64_t kPiece = 1024;  // rows
  const std::int64_t columns = weight.num_columns;
  std::vector<double> sums(static_cast<std::size_t>(columns), 0);
  for (std::int64_t begin = 0; begin < weight.num_rows; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, weight.num_rows - begin);
    const auto values = read_floats(
        weight.bytes.substr(bytes_of(begin * columns, weight.dtype), bytes_of(count * columns, weight.dtype)),
        weight.dtype);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += static_cast<double>(values[i]);
  }
  std::vector<float> mean;
  for (const double sum : sums) mean.push_back(static_cast<float>(sum / static_cast<double>(weight.num_rows)));
  return mean;
}

/// One row in dtype `target`.
bool converted(const float* row, std::int64_t columns, storage::DType target, std::string& out) {
  const std::string_view bytes(reinterpret_cast<const char*>(row), bytes_of(columns, storage::DType::kF32));
  return merge_weight({bytes, storage::DType::kF32, 1, columns}, nullptr, target, out);
}

}  // namespace

bool merge_token_rows(const WeightToMerge& weight, const TokenRowsToMerge& rows, storage::DType target,
                      std::string& out) {
  bool is_finite = merge_weight(weight, nullptr, target, out);
  const std::int64_t columns = weight.num_columns;
  std::string row;
  if (rows.num_rows > weight.num_rows) {
    is_finite = converted(mean_of_rows(weight).data(), columns, target, row) && is_finite;
    out.reserve(bytes_of(rows.num_rows * columns, target));
    for (std::int64_t i = weight.num_rows; i < rows.num_rows; ++i) out += row;
  }
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    const float* values = rows.values.data() + static_cast<std::int64_t>(i) * columns;
    is_finite = converted(values, columns, target, row) && is_finite;
    out.replace(bytes_of(rows.ids[i] * columns, target), row.size(), row);
  }
  return is_finite;
}

}  // namespace lora_train::lora
