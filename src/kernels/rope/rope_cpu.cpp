#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"
#include "rope_parts.h"

namespace lora_train::kernels {
namespace {

template <class T>
LORA_TRAIN_CLONES void rotate_heads(T* x, const float* cos, const float* sin, float direction,
                                    const HeadCounts& heads) {
  const std::int64_t H = heads.total(), E = heads.head_size, half = heads.rotary / 2;
  for (std::int64_t h = 0; h < H; ++h) {
    T* first = x + h * E;
    T* second = first + half;
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = load(first + i), b = load(second + i), s = sin[i] * direction;
      store(first + i, a * cos[i] - b * s);
      store(second + i, b * cos[i] + a * s);
    }
  }
}

template <class T>
LORA_TRAIN_CLONES void scale_heads(T* x, float scale, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) store(x + i, load(x + i) * scale);
}

}  // namespace

template <class T>
void rope_cpu(Rows<T> x, RotationTable table, bool inverse, std::int64_t num_tokens, HeadCounts heads) {
  const float direction = inverse ? -1.0F : 1.0F;
  const std::int64_t E = heads.head_size;
  parallel_ranges(num_tokens, row_grain(heads.total() * E), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float scale = rounded_to<T>(table.scale_of(n, /*is_q=*/true));
      if (inverse && scale != 1) scale_heads(x[n], scale, heads.num_q * E);
      rotate_heads(x[n], table.cos[table.positions[n]], table.sin[table.positions[n]], direction, heads);
      if (!inverse && scale != 1) scale_heads(x[n], scale, heads.num_q * E);
    }
  });
}

LORA_TRAIN_INSTANTIATE(rope_cpu);

}  // namespace lora_train::kernels
