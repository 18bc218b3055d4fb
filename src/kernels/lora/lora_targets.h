// The adapters of a projection, as kernel arguments. No torch.
#pragma once

#include <cstdint>

#include "launch/rows.h"

namespace lora_train::kernels {

/// A LoraPart (lora.h).
struct LoraTarget {
  std::int64_t column, rank, out_begin, out_end;
  float scale;
  Rows<float> grad;
};

/// An upper bound on the adapters per projection.
constexpr int kMaxLoraTargets = 4;

struct LoraTargets {
  LoraTarget list[kMaxLoraTargets];
  int count;

  const LoraTarget* begin() const { return list; }
  const LoraTarget* end() const { return list + count; }
  /// The end of the last adapter's columns in the thin operand.
  std::int64_t num_columns() const {
    std::int64_t most = 0;
    for (const LoraTarget& target : *this)
      most = target.column + target.rank > most ? target.column + target.rank : most;
    return most;
  }
};

}  // namespace lora_train::kernels
