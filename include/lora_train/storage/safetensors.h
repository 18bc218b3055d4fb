// Reads and writes safetensors files. Reading checks every rule of the format, then maps the file; writing is atomic.
// Format: u64 little-endian N, N bytes of JSON, then the tensors packed, row-major, little-endian.
// Source: huggingface/safetensors, safetensors/src/tensor.rs (the reference reader; ours also refuses duplicate keys).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/file.h"

namespace lora_train::storage {

/// Element types of the format. A file may hold any of them; callers refuse the types that they cannot use.
enum class DType {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};

/// The name in the header: "F32", "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);
/// Empty for a name that the format does not define.
std::optional<DType> parse_dtype(std::string_view name);
/// Bits per element: 4 and 6 for the sub-byte types, 8 to 64 otherwise.
int dtype_bits(DType dtype);
/// True for F32, F16 and BF16, the types that weights and adapters may be stored in.
bool is_weight_dtype(DType dtype);

/// One tensor of a file. The name is UTF-8. A shape may be empty (one element) or contain zeros; dimensions are below
/// 2^63.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  ///< bytes [begin, end) of the data that follows the header
  std::uint32_t file = 0;          ///< index of its file in a WeightFiles; 0 for a single file

  std::int64_t num_elements() const;
  std::size_t num_bytes() const { return end - begin; }
};

/// "[2, 3]", for messages.
std::string show_shape(const std::vector<std::int64_t>& shape);
/// "BF16 [2, 3]", for messages.
std::string describe(const TensorEntry& entry);

/// A validated, memory-mapped file. Copies share the map. Safe to read from several threads.
class SafetensorsFile {
 public:
  /// Maps the file and checks all rules of the format; allocates nothing for data. Throws IoError if the file cannot be
  /// opened, FormatError (where = "file" or "file: tensor") if it is not a regular file (then it is not opened) or not
  /// a valid safetensors file.
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// The same for a file that is already mapped or read.
  explicit SafetensorsFile(MappedFile file);

  const std::filesystem::path& path() const { return file_.path(); }
  /// All tensors, in the order of their data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Null if there is no such tensor. The pointer is valid until this object is moved or destroyed.
  const TensorEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The packed elements. They may be unaligned for their type, so copy them with memcpy. Valid while any copy of this
  /// object lives.
  std::string_view bytes(const TensorEntry& entry) const;
  /// Tells the system that the pages of a tensor are no longer needed, e.g. after copying it.
  void release(const TensorEntry& entry) const;

 private:
  MappedFile file_;
  std::size_t data_offset_ = 0;
  std::vector<TensorEntry> tensors_;
  std::vector<std::uint32_t> by_name_;  ///< indices of tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
};

/// A tensor to write. `bytes` is packed, row-major, little-endian. If the data is not in memory as one piece, set
/// `produce` instead: it is called once per tensor, in file order, and its result must stay valid until the next call.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::string_view bytes;
  std::function<std::string_view()> produce;
};

/// Size in bytes of a tensor of this dtype and shape.
std::size_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape);

/// The layout of a safetensors file. Tensors are sorted as the reference writer sorts them (descending element size,
/// then name); the header is padded with spaces to 8 bytes.
class SafetensorsLayout {
 public:
  /// Keeps pointers to `tensors`. Throws ShapeError for a duplicate or reserved name (our bug).
  explicit SafetensorsLayout(const std::vector<TensorToWrite>& tensors,
                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  std::size_t num_bytes() const { return 8 + header_.size() + data_bytes_; }
  /// `writer` has write(std::string_view). Throws ShapeError if the bytes of a tensor do not match its shape (our bug).
  template <typename Writer>
  void write(Writer& writer) const {
    writer.write(length_prefix());
    writer.write(header_);
    for (const auto* tensor : order_) writer.write(bytes_of(*tensor));
  }

 private:
  std::string length_prefix() const;
  static std::string_view bytes_of(const TensorToWrite& tensor);

  std::vector<const TensorToWrite*> order_;
  std::size_t data_bytes_ = 0;
  std::string header_;
};

}  // namespace lora_train::storage
