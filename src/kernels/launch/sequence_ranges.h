// Sequences (lora_train/kernels/sequences.h) as kernels get them. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elements.h"

namespace lora_train::kernels {

/// Sequence s has the tokens [cu[s], cu[s + 1]); those from cu[count] to num_tokens belong to none. Index is
/// std::int64_t on a CPU, std::int32_t on a GPU.
template <class Index>
struct SequenceRanges {
  const Index* cu;  ///< [count + 1]
  std::int64_t count, num_tokens;
  const std::int64_t* state_rows;  ///< [count], or null: no states

  /// The sequence of token n, or `count`.
  LORA_TRAIN_INLINE std::int64_t of_token(std::int64_t n) const {
    std::int64_t low = 0, high = count;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (cu[middle + 1] > n) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

using HostRanges = SequenceRanges<std::int64_t>;
using DeviceRanges = SequenceRanges<std::int32_t>;

/// Zeros for the tokens of no sequence.
template <class T>
void clear_rest(const HostRanges& sequences, Rows<T> y, std::int64_t width) {
  for (std::int64_t n = sequences.cu[sequences.count]; n < sequences.num_tokens; ++n) std::fill_n(y[n], width, T{});
}

}  // namespace lora_train::kernels
