#include "cast_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

/// Rows of an adapter are short and lie far apart in the weights, so each is fetched while earlier ones are written.
template <class To>
LORA_TRAIN_CLONES void copy_rows(Rows<const float> from, Rows<To> to, std::int64_t num_rows, std::int64_t width,
                                 float scale) {
  constexpr std::int64_t kAhead = 16;
  for (std::int64_t n = 0; n < num_rows; ++n) {
    if (n + kAhead < num_rows) __builtin_prefetch(to[n + kAhead], /*for writing*/ 1);
    const float* const source = from[n];
    To* const target = to[n];
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) store(target + i, source[i] * scale);
  }
}

}  // namespace

template <class To>
void scaled_copies_cpu(const CopySegment* segments, std::int64_t num_segments) {
  parallel_ranges(num_segments, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const CopySegment& s = segments[i];
      copy_rows<To>(s.from, {static_cast<To*>(s.to.data), s.to.stride}, s.num_rows, s.width, s.scale);
    }
  });
}

template void scaled_copies_cpu<float>(const CopySegment*, std::int64_t);
template void scaled_copies_cpu<Bf16>(const CopySegment*, std::int64_t);

}  // namespace lora_train::kernels
