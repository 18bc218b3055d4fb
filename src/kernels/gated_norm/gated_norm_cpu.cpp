#include <algorithm>
#include <cmath>
#include <vector>

#include "gated_norm_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

template <class T>
LORA_TRAIN_CLONES void forward_row(const T* x, const T* gate, const T* weight, float eps, T* y, std::int64_t H,
                                   std::int64_t E) {
  for (std::int64_t h = 0; h < H; ++h, x += E, gate += E, y += E) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t e = 0; e < E; ++e) sum += load(x + e) * load(x + e);
    const float rstd = 1.0F / std::sqrt(sum / static_cast<float>(E) + eps);
#pragma omp simd
    for (std::int64_t e = 0; e < E; ++e) {
      const float g = load(gate + e);
      store(y + e, gated<T>(load(x + e) * rstd, load(weight + e), g, fast_sigmoid(g)));
    }
  }
}

template <bool kHasWeightSums, class T>
LORA_TRAIN_CLONES void backward_row(const T* dy, const T* x, const T* gate, const T* weight, float eps, T* dx,
                                    T* d_gate, float* weight_sums, std::int64_t H, std::int64_t E) {
  for (std::int64_t h = 0; h < H; ++h, dy += E, x += E, gate += E, dx += E, d_gate += E) {
    float squares = 0, sum = 0;
#pragma omp simd reduction(+ : squares, sum)
    for (std::int64_t e = 0; e < E; ++e) {
      const float v = load(x + e), g = load(gate + e);
      squares += v * v;
      sum += load(dy + e) * load(weight + e) * (g * fast_sigmoid(g)) * v;
    }
    const float rstd = 1.0F / std::sqrt(squares / static_cast<float>(E) + eps);
    const float along_x = -rstd * rstd * rstd * (sum / static_cast<float>(E));
#pragma omp simd
    for (std::int64_t e = 0; e < E; ++e) {
      const float v = load(x + e), g = load(gate + e), d = load(dy + e), w = load(weight + e);
      const float sigmoid = fast_sigmoid(g), silu = g * sigmoid, normed = v * rstd;
      store(dx + e, d * w * silu * rstd + v * along_x);
      store(d_gate + e, d * w * normed * sigmoid * (1.0F + g * (1.0F - sigmoid)));
      if (kHasWeightSums) weight_sums[e] += d * normed * silu;
    }
  }
}

}  // namespace

template <class T>
void gated_norm_forward_cpu(Rows<const T> x, Rows<const T> gate, const T* weight, float eps, Rows<T> y,
                            GatedNormShape shape) {
  const std::int64_t H = shape.num_heads, E = shape.head_size;
  parallel_ranges(shape.num_tokens, row_grain(2 * H * E), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) forward_row(x[n], gate[n], weight, eps, y[n], H, E);
  });
}

template <class T>
void gated_norm_backward_cpu(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, const T* weight, float eps,
                             Rows<T> dx, Rows<T> d_gate, float* dweight, GatedNormShape shape) {
  // Blocks of tokens have sums of their own, so a sum has the same order for any number of threads.
  constexpr std::int64_t kTokens = 16;
  const std::int64_t E = shape.head_size, num_blocks = (shape.num_tokens + kTokens - 1) / kTokens;
  std::vector<float> sums(dweight != nullptr ? static_cast<std::size_t>(num_blocks * E) : 0);
  parallel_ranges(num_blocks, row_grain(3 * kTokens * shape.num_heads * E), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin * kTokens; n < std::min(end * kTokens, shape.num_tokens); ++n) {
      if (dweight != nullptr) {
        backward_row<true>(dy[n], x[n], gate[n], weight, eps, dx[n], d_gate[n], sums.data() + n / kTokens * E,
                           shape.num_heads, E);
      } else {
        backward_row<false, T>(dy[n], x[n], gate[n], weight, eps, dx[n], d_gate[n], nullptr, shape.num_heads, E);
      }
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i) dweight[i % static_cast<std::size_t>(E)] += sums[i];
}

LORA_TRAIN_INSTANTIATE(gated_norm_forward_cpu);
LORA_TRAIN_INSTANTIATE(gated_norm_backward_cpu);

}  // namespace lora_train::kernels
