#include <algorithm>
#include <cmath>

#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"
#include "rms_norm_parts.h"

namespace lora_train::kernels {
namespace {

template <bool kHasOffset, bool kHasResidual, class T>
LORA_TRAIN_CLONES float forward_row(const T* x, NormWeight<T> w, float eps, const T* residual, T* y, std::int64_t D) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t d = 0; d < D; ++d) {
    const float v = load(x + d);
    sum += v * v;
  }
  const float rstd = 1.0F / std::sqrt(sum / static_cast<float>(D) + eps);
#pragma omp simd
  for (std::int64_t d = 0; d < D; ++d) {
    const float value = times_norm_weight<T>(load(x + d) * rstd, load(w.values + d), kHasOffset ? w.offset : 0.0F);
    store(y + d, kHasResidual ? load(residual + d) + rounded_to<T>(value) : value);
  }
  return rstd;
}

template <class T>
float forward_any(const T* x, NormWeight<T> w, float eps, const T* residual, T* y, std::int64_t D) {
  if (w.offset == 0) {
    return residual == nullptr ? forward_row<false, false>(x, w, eps, residual, y, D)
                               : forward_row<false, true>(x, w, eps, residual, y, D);
  }
  return residual == nullptr ? forward_row<true, false>(x, w, eps, residual, y, D)
                             : forward_row<true, true>(x, w, eps, residual, y, D);
}

template <bool kAccumulate, class T>
LORA_TRAIN_CLONES void backward_row(const T* dy, const T* x, NormWeight<T> w, float rstd, T* dx, std::int64_t D) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t d = 0; d < D; ++d) sum += load(dy + d) * (load(w.values + d) + w.offset) * load(x + d);
  const float along_x = -rstd * rstd * rstd * (sum / static_cast<float>(D));
#pragma omp simd
  for (std::int64_t d = 0; d < D; ++d) {
    const float value = load(dy + d) * (load(w.values + d) + w.offset) * rstd + load(x + d) * along_x;
    store(dx + d, kAccumulate ? load(dx + d) + value : value);
  }
}

template <class T>
LORA_TRAIN_CLONES void add_weight_row(const T* dy, const T* x, float rstd, float* sums, std::int64_t D) {
#pragma omp simd
  for (std::int64_t d = 0; d < D; ++d) sums[d] += load(dy + d) * (load(x + d) * rstd);
}

}  // namespace

template <class T>
void rms_norm_forward_cpu(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                          float* rstd, std::int64_t num_rows, std::int64_t D) {
  parallel_ranges(num_rows, row_grain(D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      rstd[n] = forward_any(x[n], weight, eps, residual.data != nullptr ? residual[n] : nullptr, y[n], D);
    }
  });
}

template <class T>
void rms_norm_backward_cpu(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                           bool accumulate, std::int64_t num_rows, std::int64_t D) {
  parallel_ranges(num_rows, row_grain(2 * D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      accumulate ? backward_row<true>(dy[n], x[n], weight, rstd[n], dx[n], D)
                 : backward_row<false>(dy[n], x[n], weight, rstd[n], dx[n], D);
    }
  });
}

template <class T>
void rms_norm_weight_gradient_cpu(Rows<const T> dy, Rows<const T> x, const float* rstd, float* dweight,
                                  std::int64_t num_rows, std::int64_t D) {
  // Threads own columns, so a sum has the same order for any number of threads; short blocks of rows keep it accurate.
  constexpr std::int64_t kColumns = 256, kRows = 64;
  const std::int64_t num_tiles = (D + kColumns - 1) / kColumns;
  parallel_ranges(num_tiles, row_grain(kColumns * num_rows), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t d = tile * kColumns, width = std::min(kColumns, D - d);
      for (std::int64_t first = 0; first < num_rows; first += kRows) {
        float sums[kColumns] = {};
        for (std::int64_t n = first; n < std::min(first + kRows, num_rows); ++n) {
          add_weight_row(dy[n] + d, x[n] + d, rstd[n], sums, width);
        }
        for (std::int64_t i = 0; i < width; ++i) dweight[d + i] += sums[i];
      }
    }
  });
}

LORA_TRAIN_INSTANTIATE(rms_norm_forward_cpu);
LORA_TRAIN_INSTANTIATE(rms_norm_backward_cpu);
LORA_TRAIN_INSTANTIATE(rms_norm_weight_gradient_cpu);

}  // namespace lora_train::kernels
