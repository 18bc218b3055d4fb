// The arithmetic of a merge: a weight with its adapter applied, in fp32, rounded once; token rows too. O rows, I
// columns. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/merged_weights.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::lora {

/// An adapter with its tensors in fp32, by model::AdapterTensor.
struct AdapterValues {
  model::AdapterSpec spec;
  std::vector<std::vector<float>> tensors;
};

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

}  // namespace lora_train::lora
