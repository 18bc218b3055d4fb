#include "embedding_cpu.h"

#include <algorithm>

#include "lora_train/kernels/parallel.h"
#include "vector_math.h"

namespace lora_train::kernels {
namespace {

template <class T>
LORA_TRAIN_INLINE void add_row(const T* from, float* to, std::int64_t D) {
#pragma omp simd
  for (std::int64_t d = 0; d < D; ++d) {
    to[d] += load(from + d);
  }
}

LORA_TRAIN_CLONES void clone_add(const float* from, float* to, std::int64_t D) { add_row(from, to, D); }
LORA_TRAIN_CLONES void clone_add(const Bf16* from, float* to, std::int64_t D) { add_row(from, to, D); }

}  // namespace

void gather_rows_cpu(Rows<const char> weight, const std::int32_t* ids, Rows<char> out, std::int64_t num_tokens,
                     std::int64_t width_bytes) {
  parallel_ranges(num_tokens, row_grain(width_bytes / 4), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      std::memcpy(out[n], weight[ids[n]], static_cast<std::size_t>(width_bytes));
    }
  });
}

template <class T>
void scatter_add_rows_cpu(Rows<const T> dout, const std::int32_t* ids, Rows<float> dweight, std::int64_t num_tokens,
                          std::int64_t D) {
  constexpr std::int64_t kColumns = 64;
  parallel_ranges((D + kColumns - 1) / kColumns, row_grain(kColumns * num_tokens),
                  [&](std::int64_t begin, std::int64_t end) {
                    const std::int64_t first = begin * kColumns, width = std::min(end * kColumns, D) - first;
                    for (std::int64_t n = 0; n < num_tokens; ++n) {
                      clone_add(dout[n] + first, dweight[ids[n]] + first, width);
                    }
                  });
}

template void scatter_add_rows_cpu(Rows<const float>, const std::int32_t*, Rows<float>, std::int64_t, std::int64_t);
template void scatter_add_rows_cpu(Rows<const Bf16>, const std::int32_t*, Rows<float>, std::int64_t, std::int64_t);

}  // namespace lora_train::kernels
