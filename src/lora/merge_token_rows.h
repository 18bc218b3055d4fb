// Writes trained token rows into an embedding or a head. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "merge_math.h"

namespace lora_train::lora {

struct TokenRowsToMerge {
  std::vector<std::int64_t> ids;
  std::vector<float> values;  ///< a row for each id
  std::int64_t num_rows = 0;  ///< of the result, at least those of the weight; ids lie below
};

/// Writes the weight to `out` in dtype `target`, as merge_weight does, with the trained rows in place. Rows that the weight lacks are
/// the mean of its rows, as when the adapter is used unmerged. Returns whether every element of the result is finite.
bool merge_token_rows(const WeightToMerge& weight, const TokenRowsToMerge& rows, storage::DType target,
                      std::string& out);

}  // namespace lora_train::lora
