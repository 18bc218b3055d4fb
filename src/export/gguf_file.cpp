#include "lora_train/export/gguf_file.h"

#include <bit>
#include <cstring>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "row_writer.h"

namespace lora_train::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are in memory");

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;  // general.alignment, whose default this is
constexpr std::size_t kMaxNameBytes = 63;

/// Types of values, by their number in the format.
enum class ValueType : std::uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10
};

template <class T>
constexpr ValueType type_of() {
  if constexpr (std::is_same_v<T, std::uint32_t>) return ValueType::kUint32;
  if constexpr (std::is_same_v<T, std::int32_t>) return ValueType::kInt32;
  if constexpr (std::is_same_v<T, float>) return ValueType::kFloat32;
  if constexpr (std::is_same_v<T, bool>) return ValueType::kBool;
  if constexpr (std::is_same_v<T, std::uint64_t>) return ValueType::kUint64;
  return ValueType::kString;
}

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

void put(bool value, std::string& out) { out += static_cast<char>(value ? 1 : 0); }

template <class T>
void put_value(const T& value, std::string& out) {
  put(static_cast<std::uint32_t>(type_of<T>()), out);
  put(value, out);
}

template <class T>
void put_value(const std::vector<T>& list, std::string& out) {
  put(static_cast<std::uint32_t>(ValueType::kArray), out);
  put(static_cast<std::uint32_t>(type_of<T>()), out);
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
    throw ShapeError(tensor.name, std::to_string(written) + " bytes given, " + std::to_string(expected) + " needed");
  }
  writer.write(std::string(padded(expected) - expected, '\0'));
}

}  // namespace

std::string_view type_name(TensorType type) {
  switch (type) {
    case TensorType::kF32: return "F32";
    case TensorType::kF16: return "F16";
    case TensorType::kQ8_0: return "Q8_0";
    case TensorType::kBF16: return "BF16";
  }
  return "";
}

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

}  // namespace lora_train::gguf
