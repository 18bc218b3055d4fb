// The arithmetic of a merge: a weight with its adapter applied, in fp32, rounded once; token rows too. O rows, I
// columns. No torch.
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

/// Writes the weight with its adapter applied (no `adapter`: only the weight) to `out`, in dtype `target` (F32, F16 or
/// BF16), rounded to nearest even. Computes in the order of PEFT's merge. Uses all cores. Returns true if every element
/// of the result is finite.
bool merge_weight(const WeightToMerge& weight, const AdapterValues* adapter, storage::DType target, std::string& out);

struct TokenRowsToMerge {
  std::vector<std::int64_t> ids;
  std::vector<float> values;  ///< a row for each id
  std::int64_t num_rows = 0;  ///< of the result, at least those of the weight; ids are below this
};

/// Writes the weight to `out` in dtype `target`, as merge_weight does, with the trained rows in place. Rows that the
/// weight lacks get the mean of its rows, as with an unmerged adapter. Returns true if every element of the result is
/// finite.
bool merge_token_rows(const WeightToMerge& weight, const TokenRowsToMerge& rows, storage::DType target,
                      std::string& out);

/// An adapter to rewrite, with checked tensors.
struct AdapterSource {
  AdapterConfig config;
  std::vector<std::string> paths;     ///< to the linears: "model.layers.0.self_attn.q_proj"
  std::vector<RankAndScale> linears;  ///< for each path
  storage::SafetensorsFile file;
};

/// Opens an adapter with the linears in its file, without a model. `refusal`: the error text for trained token rows,
/// with an alternative. Throws FormatError.
AdapterSource open_adapter_source(const std::filesystem::path& folder, const std::string& refusal);
/// Opens an adapter with the linears of the model that it targets.
AdapterSource open_adapter_source(const std::filesystem::path& folder, const model::ModelConfig& model,
                                  const std::string& refusal);

/// The uniform rank and scale of all linears.
struct UniformScale {
  std::int64_t rank = 0;          ///< the largest; lower ones are padded with zeros
  double scale = 1;               ///< the scale of all linears; 1 if they differ or the format cannot express it
  std::int64_t num_padded = 0;    ///< linears of a lower rank
  std::int64_t num_rescaled = 0;  ///< linears whose B is multiplied (one rounding in fp32)
};
/// `can_say`: true if the format can express a scale exactly with that rank.
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

/// The matrices of linear `index` with the uniform rank and scale. Throws FormatError for NaN and infinity,
/// NumericError for a B beyond F32.
struct UniformPair {
  Matrix a, b;
};
UniformPair uniform_pair(const AdapterSource& source, std::size_t index, const UniformScale& uniform);

/// "base_model.model.<path>.lora_A.weight", and the same for B.
std::string tensor_name_a(const std::string& path);
std::string tensor_name_b(const std::string& path);

}  // namespace lora_train::lora
