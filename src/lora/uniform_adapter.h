// An adapter rewritten with one rank and one scale for all linears, for readers that know neither rsLoRA nor patterns.
// Private to the module.
// R rank of a linear; A [R, in], B [out, R].
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::lora {

/// An adapter to rewrite, its tensors checked.
struct AdapterSource {
  AdapterConfig config;
  std::vector<std::string> paths;     ///< of the linears: "model.layers.0.self_attn.q_proj"
  std::vector<RankAndScale> linears;  ///< of each path
  storage::SafetensorsFile file;
};

/// Of the linears in the file, without a model. `refusal` of trained token rows: what to do instead. Throws FormatError.
AdapterSource open_adapter_source(const std::filesystem::path& folder, const std::string& refusal);
/// Of the linears of a model that the adapter targets.
AdapterSource open_adapter_source(const std::filesystem::path& folder, const model::ModelConfig& model,
                                  const std::string& refusal);

/// The rank and scale that all linears get.
struct UniformScale {
  std::int64_t rank = 0;          ///< the largest; lower ones are padded with zeros
  double scale = 1;               ///< that of all linears; 1 if they differ, or if the format cannot say it
  std::int64_t num_padded = 0;    ///< linears of a lower rank
  std::int64_t num_rescaled = 0;  ///< linears whose B is multiplied (one rounding in fp32)
};
/// `can_say`: whether the format can say a scale with that rank exactly.
UniformScale uniform_scale(const AdapterSource& source,
                           const std::function<bool(std::int64_t rank, double scale)>& can_say);

/// The values of a matrix, kept alive until they are written.
struct Matrix {
  std::vector<float> values;
  std::int64_t num_rows = 0, num_columns = 0;

  Matrix transposed() const;
  /// An F32 tensor that points into `values`.
  storage::TensorToWrite to_write(std::string name) const;
};

/// The matrices of linear `index` with the uniform rank and scale. Throws FormatError for NaN and infinity, NumericError for a B
/// beyond F32.
struct UniformPair {
  Matrix a, b;
};
UniformPair uniform_pair(const AdapterSource& source, std::size_t index, const UniformScale& uniform);

/// "base_model.model.<path>.lora_A.weight", and of B.
std::string tensor_name_a(const std::string& path);
std::string tensor_name_b(const std::string& path);

}  // namespace lora_train::lora
