// The arithmetic of a merge: a weight with its adapter applied, in fp32, rounded once; token rows too. O rows, I columns. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::lora {

/// An adapter with its tensors in fp32, by model::AdapterTensor.
struct AdapterValues {
  model::AdapterSpec spec;
  std::vector<std::vector<float>> tensors;
};

/// Packed elements of F32, F16 or BF16 (any alignment), as fp32.
std::vector<float> read_floats(std::string_view bytes, storage::DType dtype);

bool all_finite(const std::vector<float>& values);

/// A weight to be written.
struct WeightToMerge {
  std::string_view bytes;  ///< packed, F32, F16 or BF16
  storage::DType dtype = storage::DType::kF32;
  std::int64_t num_rows = 1, num_columns = 0;  ///< [O, I]
};

/// Writes the weight with its adapter applied (no `adapter`: the weight alone) to `out`, in dtype `target` (F32, F16 or BF16),
/// rounded to nearest even. Computes in the order of PEFT's merge. Uses all cores. Returns whether every element of the result
/// is finite.
bool merge_weight(const WeightToMerge& weight, const AdapterValues* adapter, storage::DType target, std::string& out);

struct TokenRowsToMerge {
  std::vector<std::int64_t> ids;
  std::vector<float> values;  ///< a row for each id
  std::int64_t num_rows = 0;  ///< of the result, at least those of the weight; ids lie below
};

/// Writes the weight to `out` in dtype `target`, as merge_weight does, with the trained rows in place. Rows that the weight lacks are
/// the mean of its rows, as when the adapter is used unmerged. Returns whether every element of the result is finite.
bool merge_token_rows(const WeightToMerge& weight, const TokenRowsToMerge& rows, storage::DType target,
                      std::string& out);

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
