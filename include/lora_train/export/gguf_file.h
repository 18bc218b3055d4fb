// Writes GGUF files, version 3: metadata, then tensors, each aligned to 32 bytes. No torch.
// Source: ggml-org/ggml, docs/gguf.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lora_train/storage/safetensors.h"

namespace lora_train::gguf {

/// The types that can be written, with their numbers in the format.
enum class TensorType : std::uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

/// Values that share a scale in kQ8_0.
inline constexpr std::int64_t kBlock = 32;

struct TypeRow {
  TensorType type;
  const char* name;
  std::uint32_t file_type;          ///< of a file whose matrices have this type (llama.h: llama_ftype)
  std::int64_t block, block_bytes;  ///< values that are encoded together, and their bytes
};
inline constexpr TypeRow kTypes[] = {{TensorType::kF32, "F32", 0, 1, 4},
                                     {TensorType::kF16, "F16", 1, 1, 2},
                                     {TensorType::kBF16, "BF16", 32, 1, 2},
                                     {TensorType::kQ8_0, "Q8_0", 7, kBlock, kBlock + 2}};
const TypeRow& row_of(TensorType type);

using Value = std::variant<std::uint32_t, std::int32_t, float, bool, std::string, std::vector<bool>,
                           std::vector<std::int32_t>, std::vector<float>, std::vector<std::string>>;

struct KeyValue {
  std::string key;
  Value value;
};

/// A tensor whose bytes are produced while it is written.
struct Tensor {
  using Write = std::function<void(std::string_view bytes)>;
  std::string name;  ///< at most 63 bytes, llama.cpp's limit
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;                  ///< row-major, as in PyTorch; reversed in the file
  std::function<void(const Write& write)> produce;  ///< calls write() any number of times, with num_bytes() in total

  /// With kQ8_0, rows must be a multiple of 32.
  std::uint64_t num_bytes() const;
};

/// The first bytes of every file.
inline constexpr std::string_view kMagic = "GGUF";

/// Writes the file through AtomicFileWriter, with its space reserved first: it appears whole or not at all. Returns its
/// size. Throws IoError; ShapeError for a tensor with the wrong number of bytes or a bad name (our bugs); what
/// `produce` throws.
std::uint64_t write_gguf(const std::filesystem::path& path, const std::vector<KeyValue>& metadata,
                         const std::vector<Tensor>& tensors);

/// A tensor [num_rows, num_columns] to write. `bytes` is packed, F32, F16 or BF16.
struct Rows {
  std::string_view bytes;
  storage::DType dtype = storage::DType::kF32;
  std::int64_t num_rows = 1, num_columns = 0;
  std::vector<std::int64_t> row_order = {}, column_order = {};  ///< of the source; empty: as they are
  float offset = 0;                                             ///< added to every value
  float factor = 1;                                             ///< multiplies every value
  float (*map)(float) = nullptr;                                ///< applied to every value before
};

/// Encodes and writes the rows piece by piece. Throws FormatError (name) for NaN or infinity, NumericError for a value
/// that does not fit.
void write_rows(const Rows& rows, const std::string& name, TensorType type, const Tensor::Write& write);

/// Bytes of `count` values; with kQ8_0, `count` is a multiple of kBlock.
std::uint64_t encoded_bytes(std::int64_t count, TensorType type);

/// Appends the values, rounded to nearest even. kQ8_0: blocks of an F16 scale, the largest magnitude / 127, and 32
/// signed bytes, value / scale rounded half away from zero (ggml's quantize_row_q8_0_ref). Returns true if all values
/// are finite and fit.
bool encode(const float* values, std::int64_t count, TensorType type, std::string& out);

}  // namespace lora_train::gguf
