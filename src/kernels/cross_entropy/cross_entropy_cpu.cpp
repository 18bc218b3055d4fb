#include <algorithm>
#include <cmath>
#include <limits>

#include "cross_entropy_parts.h"
#include "launch/avx512.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

/// The largest element and the sum of exp(element - largest).
struct SoftmaxSum {
  float largest;
  double sum;
};

constexpr std::int64_t kTile = 2048;

// One pass over memory: a tile is read for its maximum and again, from the first cache, for its sum.
template <class T>
LORA_TRAIN_CLONES SoftmaxSum sum_row(const T* x, std::int64_t V) {
  SoftmaxSum s{-std::numeric_limits<float>::infinity(), 0};
  for (std::int64_t first = 0; first < V; first += kTile) {
    const std::int64_t end = std::min(first + kTile, V);
    float largest = s.largest;
#pragma omp simd reduction(max : largest)
    for (std::int64_t i = first; i < end; ++i) largest = std::max(largest, load(x + i));
    if (largest > s.largest) {
      s.sum *= std::exp(static_cast<double>(s.largest) - static_cast<double>(largest));
      s.largest = largest;
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = first; i < end; ++i) sum += fast_exp(load(x + i) - largest);
    s.sum += static_cast<double>(sum);
  }
  return s;
}

template <class T>
LORA_TRAIN_CLONES void gradient_row(T* x, float largest, float factor, std::int64_t V) {
#pragma omp simd
  for (std::int64_t i = 0; i < V; ++i) store(x + i, fast_exp(load(x + i) - largest) * factor);
}

#if defined(__x86_64__)
// The same with an exponential of half as many instructions, which are the limit.

template <class T>
LORA_TRAIN_V4_INLINE __m512 exponentials(const T* x, __m512 largest, __mmask16 lanes) {
  return exp2_16(_mm512_mul_ps(_mm512_sub_ps(masked_load16(x, lanes), largest), _mm512_set1_ps(kLog2E)));
}

template <class T>
LORA_TRAIN_V4 SoftmaxSum sum_row_v4(const T* x, std::int64_t V) {
  SoftmaxSum s{-std::numeric_limits<float>::infinity(), 0};
  for (std::int64_t first = 0; first < V; first += kTile) {
    const std::int64_t end = std::min(first + kTile, V);
    __m512 most = _mm512_set1_ps(s.largest);
    for (std::int64_t i = first; i < end; i += kLanes) {
      const __mmask16 lanes = first_lanes(end - i);
      most = _mm512_mask_max_ps(most, lanes, masked_load16(x + i, lanes), most);  // in this order a NaN is left out
    }
    if (const float largest = _mm512_reduce_max_ps(most); largest > s.largest) {
      s.sum *= std::exp(static_cast<double>(s.largest) - static_cast<double>(largest));
      s.largest = largest;
    }
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t i = first; i < end; i += kLanes) {
      const __mmask16 lanes = first_lanes(end - i);
      sum = _mm512_mask_add_ps(sum, lanes, sum, exponentials(x + i, _mm512_set1_ps(s.largest), lanes));
    }
    s.sum += static_cast<double>(_mm512_reduce_add_ps(sum));
  }
  return s;
}

template <class T>
LORA_TRAIN_V4 void gradient_row_v4(T* x, float largest, float factor, std::int64_t V) {
  for (std::int64_t i = 0; i < V; i += kLanes) {
    const __mmask16 lanes = first_lanes(V - i);
    const __m512 p = exponentials(x + i, _mm512_set1_ps(largest), lanes);
    masked_store16(x + i, _mm512_mul_ps(p, _mm512_set1_ps(factor)), lanes);
  }
}

#endif

template <class T>
SoftmaxSum sum_of_row(const T* x, std::int64_t V) {
#if defined(__x86_64__)
  if (has_avx512()) return sum_row_v4(x, V);
#endif
  return sum_row(x, V);
}

template <class T>
void write_gradient(T* x, float largest, float factor, std::int64_t V) {
#if defined(__x86_64__)
  if (has_avx512()) return gradient_row_v4(x, largest, factor, V);
#endif
  gradient_row(x, largest, factor, V);
}

template <class T>
bool is_first_of_largest(const T* x, std::int64_t target, float largest) {
  return load(x + target) == largest &&
         std::none_of(x, x + target, [&](const T& other) { return load(&other) == largest; });
}

template <class T>
void no_target_row(T* x, std::int64_t V, bool write_gradient, float* loss, bool* correct, float* confidence) {
  *loss = 0;
  if (correct != nullptr) *correct = false;
  if (confidence != nullptr) *confidence = static_cast<float>(1.0 / sum_of_row(x, V).sum);
  if (write_gradient) std::fill_n(x, V, T{});
}

}  // namespace

template <class T>
void cross_entropy_in_place_cpu(Rows<T> logits, const std::int32_t* targets, const float* weights,
                                const double* denominator, float* losses, bool* correct, float* confidence,
                                std::int64_t num_rows, std::int64_t V) {
  const double per_weight = denominator != nullptr ? 1.0 / *denominator : 0;
  parallel_ranges(num_rows, row_grain(4 * V), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      T* x = logits[m];
      if (targets[m] < 0) {
        no_target_row(x, V, denominator != nullptr, losses + m, correct != nullptr ? correct + m : nullptr,
                      confidence != nullptr ? confidence + m : nullptr);
        continue;
      }
      const std::int64_t target = targets[m];
      const SoftmaxSum s = sum_of_row(x, V);
      const double from_largest = static_cast<double>(load(x + target)) - static_cast<double>(s.largest);
      losses[m] = static_cast<float>(std::log(s.sum) - from_largest);
      if (correct != nullptr) correct[m] = is_first_of_largest(x, target, s.largest);
      if (confidence != nullptr) {
        confidence[m] = static_cast<float>(1.0 / s.sum);
      }
      if (denominator != nullptr) {
        const double scale = weights != nullptr ? static_cast<double>(weights[m]) * per_weight : per_weight;
        const double probability = std::exp(from_largest) / s.sum;
        write_gradient(x, s.largest, static_cast<float>(scale / s.sum), V);
        store(x + target, static_cast<float>((probability - 1.0) * scale));
      }
    }
  });
}

LORA_TRAIN_INSTANTIATE(cross_entropy_in_place_cpu);

}  // namespace lora_train::kernels
