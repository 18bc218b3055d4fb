#include <algorithm>

#include "dropout_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kGroups = 64;  // Philox blocks drawn together, four features each

struct Words {
  std::uint32_t c[4][kGroups];
};

// philox4x32 of base/philox.h for counters (document, position, first_group + i, 0), one round at a time over all i.
LORA_TRAIN_INLINE void draw(Words& words, std::uint32_t document, std::uint32_t position, std::uint32_t first_group,
                            PhiloxKey key) {
  for (std::uint32_t i = 0; i < kGroups; ++i) {
    words.c[0][i] = document;
    words.c[1][i] = position;
    words.c[2][i] = first_group + i;
    words.c[3][i] = 0;
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (std::int64_t i = 0; i < kGroups; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * words.c[0][i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * words.c[2][i];
      words.c[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ words.c[1][i] ^ key.k0;
      words.c[1][i] = static_cast<std::uint32_t>(p1);
      words.c[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ words.c[3][i] ^ key.k1;
      words.c[3][i] = static_cast<std::uint32_t>(p0);
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

template <class T>
LORA_TRAIN_CLONES void drop_row(const T* x, std::uint32_t document, std::uint32_t position, PhiloxKey key,
                                std::uint32_t threshold, float factor, T* y, std::int64_t D) {
  Words words;
  float masks[4 * kGroups];
  for (std::int64_t d = 0; d < D; d += 4 * kGroups) {
    draw(words, document, position, static_cast<std::uint32_t>(d / 4), key);
    for (std::int64_t i = 0; i < kGroups; ++i) {
      for (std::int64_t j = 0; j < 4; ++j) masks[4 * i + j] = (words.c[j][i] >> 8) >= threshold ? factor : 0.0F;
    }
    const std::int64_t width = std::min(4 * kGroups, D - d);
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) {
      store(y + d + i, masks[i] == 0.0F ? 0.0F : load(x + d + i) * masks[i]);  // a dropped NaN or infinity is 0
    }
  }
}

}  // namespace

template <class T>
void dropout_forward_cpu(Rows<const T> x, const std::int32_t* token_document, const std::int32_t* token_position,
                         const PhiloxKey* key, std::uint32_t threshold, float factor, Rows<T> y,
                         std::int64_t num_tokens, std::int64_t D) {
  parallel_ranges(num_tokens, row_grain(2 * D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      drop_row(x[n], static_cast<std::uint32_t>(token_document[n]), static_cast<std::uint32_t>(token_position[n]), *key,
               threshold, factor, y[n], D);
    }
  });
}

LORA_TRAIN_INSTANTIATE(dropout_forward_cpu);

}  // namespace lora_train::kernels
