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

namespace lora_train::gguf {

/// The types that are written, by their number in the format.
enum class TensorType : std::uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };
/// "F32", "F16", "Q8_0", "BF16".
std::string_view type_name(TensorType type);

using Value = std::variant<std::uint32_t, std::int32_t, float, bool, std::uint64_t, std::string, std::vector<bool>,
                           std::vector<std::int32_t>, std::vector<float>, std::vector<std::string>>;

struct KeyValue {
  std::string key;
  Value value;
};

/// A tensor whose bytes are made while it is written.
struct Tensor {
  using Write = std::function<void(std::string_view bytes)>;
  std::string name;  ///< at most 63 bytes, all that llama.cpp takes
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;                  ///< row-major, as in PyTorch; the file has it reversed
  std::function<void(const Write& write)> produce;  ///< calls write() any number of times, for num_bytes() in all

  /// With kQ8_0, rows must be a multiple of 32.
  std::uint64_t num_bytes() const;
};

/// The first bytes of every file.
inline constexpr std::string_view kMagic = "GGUF";

/// Writes the file through AtomicFileWriter: it appears whole or not at all, with its space reserved first. Returns its size.
/// Throws IoError; ShapeError if a tensor gives other than its bytes, or for a bad name (our bugs); what `produce` throws.
std::uint64_t write_gguf(const std::filesystem::path& path, const std::vector<KeyValue>& metadata,
                         const std::vector<Tensor>& tensors);

}  // namespace lora_train::gguf
