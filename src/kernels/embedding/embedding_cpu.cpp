#include <algorithm>

#include "embedding_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

template <class T>
LORA_TRAIN_CLONES void add_row(const T* from, float scale, float* to, std::int64_t D) {
#pragma omp simd
  for (std::int64_t d = 0; d < D; ++d) to[d] += scale * load(from + d);
}

template <class T>
LORA_TRAIN_CLONES void scale_row(const T* from, float scale, T* to, std::int64_t D) {
#pragma omp simd
  for (std::int64_t d = 0; d < D; ++d) store(to + d, scale * load(from + d));
}

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
void gather_scaled_rows_cpu(Rows<const T> weight, const std::int32_t* ids, float scale, Rows<T> out,
                            std::int64_t num_tokens, std::int64_t D) {
  parallel_ranges(num_tokens, row_grain(D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) scale_row(weight[ids[n]], scale, out[n], D);
  });
}

template <class T>
void scatter_add_rows_cpu(Rows<const T> dout, const std::int32_t* ids, float scale, Rows<float> dweight,
                          std::int64_t num_tokens, std::int64_t D) {
  constexpr std::int64_t kColumns = 64;
  parallel_ranges((D + kColumns - 1) / kColumns, row_grain(kColumns * num_tokens),
                  [&](std::int64_t begin, std::int64_t end) {
                    const std::int64_t first = begin * kColumns, width = std::min(end * kColumns, D) - first;
                    for (std::int64_t n = 0; n < num_tokens; ++n) {
                      add_row(dout[n] + first, scale, dweight[ids[n]] + first, width);
                    }
                  });
}

LORA_TRAIN_INSTANTIATE(gather_scaled_rows_cpu);
LORA_TRAIN_INSTANTIATE(scatter_add_rows_cpu);

}  // namespace lora_train::kernels
