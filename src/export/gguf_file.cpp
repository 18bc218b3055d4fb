#include "lora_train/export/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/half.h"
#include "lora_train/lora/merged_weights.h"

namespace lora_train::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are in memory");

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;  // general.alignment, which defaults to this
constexpr std::size_t kMaxNameBytes = 63;

/// The number of a value's type in the format.
template <class T>
constexpr std::uint32_t type_number() {
  if (std::is_same_v<T, std::uint32_t>) return 4;
  if (std::is_same_v<T, std::int32_t>) return 5;
  if (std::is_same_v<T, float>) return 6;
  return std::is_same_v<T, bool> ? 7 : 8;  // 8: a string
}
constexpr std::uint32_t kArrayNumber = 9;

std::uint64_t padded(std::uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
void put(const T& number, std::string& out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &number, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put(const std::string& text, std::string& out) {
  put(static_cast<std::uint64_t>(text.size()), out);
  out += text;
}

template <class T>
void put_value(const T& value, std::string& out) {
  put(type_number<T>(), out);
  put(value, out);
}

template <class T>
void put_value(const std::vector<T>& list, std::string& out) {
  put(kArrayNumber, out);
  put(type_number<T>(), out);
  put(static_cast<std::uint64_t>(list.size()), out);
  for (const T& item : list) put(item, out);
}

/// Everything before the tensors, padded.
std::string head_of(const std::vector<KeyValue>& metadata, const std::vector<Tensor>& tensors) {
  std::string out(kMagic);
  put(kVersion, out);
  put(static_cast<std::uint64_t>(tensors.size()), out);
  put(static_cast<std::uint64_t>(metadata.size()), out);
  for (const auto& [key, value] : metadata) {
    put(key, out);
    std::visit([&](const auto& content) { put_value(content, out); }, value);
  }
  std::uint64_t offset = 0;
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    if (tensor.name.size() > kMaxNameBytes || !names.insert(tensor.name).second) {
      throw ShapeError(tensor.name, "two tensors to write have this name, or it is too long");
    }
    put(tensor.name, out);
    put(static_cast<std::uint32_t>(tensor.shape.size()), out);
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      put(static_cast<std::uint64_t>(*size), out);
    put(static_cast<std::uint32_t>(tensor.type), out);
    put(offset, out);
    offset += padded(tensor.num_bytes());
  }
  out.resize(padded(out.size()), '\0');
  return out;
}

void write_tensor(const Tensor& tensor, AtomicFileWriter& writer) {
  const std::uint64_t expected = tensor.num_bytes();
  std::uint64_t written = 0;
  tensor.produce([&](std::string_view bytes) {
    written += bytes.size();
    writer.write(bytes);
  });
  if (written != expected) {
    throw ShapeError(tensor.name, "{} bytes given, {} needed", written, expected);
  }
  writer.write(std::string(padded(expected) - expected, '\0'));
}

constexpr std::size_t kPieceBytes = 1 << 20;

[[noreturn]] void refuse_row(const std::vector<float>& values, const std::string& name, TensorType type) {
  if (!lora::all_finite(values)) throw FormatError(name, "holds NaN or infinity: the file is damaged");
  throw NumericError(name, "holds a value beyond what {} can hold; pass --type f32, which holds every value",
                     row_of(type).name);
}

/// True if the bits are neither infinity nor NaN.
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
  put(bits, out);
  for (std::int64_t i = 0; i < kBlock; ++i) {
    out += static_cast<char>(static_cast<std::int8_t>(std::round(values[i] * inverse)));
  }
  return true;
}

}  // namespace

const TypeRow& row_of(TensorType type) { return *std::ranges::find(kTypes, type, &TypeRow::type); }

std::uint64_t Tensor::num_bytes() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return encoded_bytes(count, type);
}

std::uint64_t write_gguf(const std::filesystem::path& path, const std::vector<KeyValue>& metadata,
                         const std::vector<Tensor>& tensors) {
  const std::string head = head_of(metadata, tensors);
  std::uint64_t size = head.size();
  for (const Tensor& tensor : tensors) size += padded(tensor.num_bytes());
  AtomicFileWriter writer(path, size);
  writer.write(head);
  for (const Tensor& tensor : tensors) write_tensor(tensor, writer);
  writer.commit();
  return size;
}

void write_rows(const Rows& rows, const std::string& name, TensorType type, const Tensor::Write& write) {
  const auto row_bytes = static_cast<std::size_t>(rows.num_columns * storage::dtype_bits(rows.dtype) / 8);
  std::string piece;
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    const auto source =
        static_cast<std::size_t>(rows.row_order.empty() ? row : rows.row_order[static_cast<std::size_t>(row)]);
    std::vector<float> values = lora::read_floats(rows.bytes.substr(source * row_bytes, row_bytes), rows.dtype);
    if (!rows.column_order.empty()) {
      std::vector<float> ordered;
      for (const std::int64_t column : rows.column_order) ordered.push_back(values[static_cast<std::size_t>(column)]);
      values = std::move(ordered);
    }
    if (rows.map != nullptr) std::ranges::transform(values, values.begin(), rows.map);
    if (rows.offset != 0 || rows.factor != 1) {
      std::ranges::transform(values, values.begin(), [&](float value) { return value * rows.factor + rows.offset; });
    }
    if (!encode(values.data(), rows.num_columns, type, piece)) refuse_row(values, name, type);
    if (piece.size() < kPieceBytes) continue;
    write(piece);
    piece.clear();
  }
  write(piece);
}

std::uint64_t encoded_bytes(std::int64_t count, TensorType type) {
  const TypeRow& row = row_of(type);
  return static_cast<std::uint64_t>(count / row.block * row.block_bytes);
}

bool encode(const float* values, std::int64_t count, TensorType type, std::string& out) {
  if (type == TensorType::kF32) {
    out.append(reinterpret_cast<const char*>(values), static_cast<std::size_t>(count) * sizeof(float));
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
    put(bits, out);
  }
  return is_finite;
}

}  // namespace lora_train::gguf
