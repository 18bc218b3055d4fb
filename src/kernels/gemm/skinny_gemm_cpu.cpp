// Every output has two vector accumulators along K, in every tile shape, so that the order of additions is the same for any
// number of rows.
// bf16 weights are read as 32-bit words, whose high and low halves are the odd and the even elements; x is laid out to match.
#include "skinny_gemm_cpu.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "launch/vector_math.h"
#include "lora_train/kernels/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kOutputs = 4;            // of a tile
constexpr std::int64_t kGrainElements = 65536;  // weights per thread below which another one costs more than it gains

typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));

/// x as fp32 [M, stride], padded with zeros to whole steps; in a step of 2 * lanes elements the first half meets the first
/// vector of sums.
struct PackedRows {
  std::vector<float> values;
  std::int64_t stride = 0, num_steps = 0;  ///< whole steps of K
};

template <class Vector>
constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(float);

template <class T>
constexpr std::int64_t kLine = 64 / sizeof(T);  // elements of a cache line

/// Where element i of a step lies in the packed x.
template <class T>
constexpr std::int64_t packed_place(std::int64_t i, std::int64_t lanes) {
  return std::is_same_v<T, float> ? i : (i % 2) * lanes + i / 2;
}

template <class T>
PackedRows pack(Rows<const T> x, std::int64_t M, std::int64_t K, std::int64_t lanes) {
  const std::int64_t step = 2 * lanes;
  PackedRows packed;
  packed.num_steps = K / step;
  packed.stride = (K + step - 1) / step * step;
  packed.values.assign(static_cast<std::size_t>(M * packed.stride), 0.0F);
  for (std::int64_t m = 0; m < M; ++m) {
    float* row = packed.values.data() + m * packed.stride;
    for (std::int64_t begin = 0; begin < K; begin += step) {
      const std::int64_t count = std::min(step, K - begin);
      for (std::int64_t i = 0; i < count; ++i) row[begin + packed_place<T>(i, lanes)] = load(x[m] + begin + i);
    }
  }
  return packed;
}

/// The two vectors of a step of weights.
template <class Vector>
LORA_TRAIN_INLINE void load_step(const float* from, Vector& first, Vector& second) {
  std::memcpy(&first, from, sizeof first);
  std::memcpy(&second, from + kLanes<Vector>, sizeof second);
}
template <class Vector>
LORA_TRAIN_INLINE void load_step(const Bf16* from, Vector& first, Vector& second) {
  typedef std::uint32_t Words __attribute__((vector_size(sizeof(Vector))));
  Words words;
  std::memcpy(&words, from, sizeof words);
  const Words even = words << 16, odd = words & 0xFFFF0000u;
  std::memcpy(&first, &even, sizeof first);
  std::memcpy(&second, &odd, sizeof second);
}

// Halves added to halves.
LORA_TRAIN_INLINE float sum_of(const Vector8& v) {
  const auto four = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  const auto two = __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
  return two[0] + two[1];
}
LORA_TRAIN_INLINE float sum_of(const Vector16& v) {
  return sum_of(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

/// Sums of a tile: two vectors for each output and row.
template <class Vector, int kTileOutputs, int kTileRows>
struct Sums {
  Vector of[kTileOutputs][kTileRows][2] = {};
};

// A step of 2 * lanes features: weights at from + o * stride, the packed x at x + r * x_stride.
template <class Vector, int kTileOutputs, int kTileRows, class T>
LORA_TRAIN_INLINE void add_step(const T* from, std::int64_t stride, const float* x, std::int64_t x_stride,
                                Sums<Vector, kTileOutputs, kTileRows>& sums) {
  Vector x0[kTileRows], x1[kTileRows];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    std::memcpy(&x0[r], x + r * x_stride, sizeof x0[r]);
    std::memcpy(&x1[r], x + r * x_stride + kLanes<Vector>, sizeof x1[r]);
  }
#pragma GCC unroll 8
  for (int o = 0; o < kTileOutputs; ++o) {
    Vector first, second;
    load_step(from + o * stride, first, second);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      sums.of[o][r][0] += first * x0[r];
      sums.of[o][r][1] += second * x1[r];
    }
  }
}

/// What all tiles of a call share.
template <class T, class Y>
struct Call {
  const SkinnyGemm<T, Y>& p;
  const PackedRows& x;
};

// Outputs [n, n + kTileOutputs) of rows [m, m + kTileRows). With kFetches the weights of the next tile are fetched
// meanwhile: rows are often too short for the processor to see where they go.
template <class Vector, int kTileOutputs, int kTileRows, bool kFetches, class T, class Y>
LORA_TRAIN_INLINE void tile(const Call<T, Y>& call, std::int64_t n, std::int64_t m) {
  constexpr std::int64_t kStep = 2 * kLanes<Vector>;
  const SkinnyGemm<T, Y>& p = call.p;
  const std::int64_t stride = p.weight.stride, x_stride = call.x.stride, whole = call.x.num_steps * kStep;
  const T* const from = p.weight[n];
  const float* const x = call.x.values.data() + m * x_stride;
  Sums<Vector, kTileOutputs, kTileRows> sums;
  for (std::int64_t k = 0; k < whole; k += kStep) {
    if constexpr (kFetches) {
#pragma GCC unroll 8
      for (int o = 0; o < kTileOutputs; ++o) {
#pragma GCC unroll 2
        for (std::int64_t line = 0; line < kStep; line += kLine<T>) {
          __builtin_prefetch(from + (o + kTileOutputs) * stride + k + line);
        }
      }
    }
    add_step(from + k, stride, x + k, x_stride, sums);
  }
  if (whole < p.K) {
    T tail[kTileOutputs * kStep] = {};
    for (int o = 0; o < kTileOutputs; ++o) {
      std::memcpy(tail + o * kStep, from + o * stride + whole, static_cast<std::size_t>(p.K - whole) * sizeof(T));
    }
    add_step(tail, kStep, x + whole, x_stride, sums);
  }
#pragma GCC unroll 8
  for (int o = 0; o < kTileOutputs; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      float sum = p.alpha * sum_of(sums.of[o][r][0] + sums.of[o][r][1]);
      if (p.bias != nullptr) sum += load(p.bias + n + o);
      if (p.residual.data != nullptr) sum += load(p.residual[m + r] + n + o);
      store(p.y[m + r] + n + o, sum);
    }
  }
}

/// Outputs [n, n + kTileOutputs) of all rows.
template <class Vector, int kTileOutputs, class T, class Y>
LORA_TRAIN_INLINE void outputs(const Call<T, Y>& call, std::int64_t n) {
  const std::int64_t M = call.p.M;
  if (M == 1) return tile<Vector, kTileOutputs, 1, true>(call, n, 0);
  tile<Vector, kTileOutputs, 2, true>(call, n, 0);
  std::int64_t m = 2;
  for (; m + 2 <= M; m += 2) tile<Vector, kTileOutputs, 2, false>(call, n, m);
  if (m < M) tile<Vector, kTileOutputs, 1, false>(call, n, m);
}

template <class Vector, class T, class Y>
LORA_TRAIN_INLINE void range(const Call<T, Y>& call, std::int64_t begin, std::int64_t end) {
  std::int64_t n = begin;
  for (; n + kOutputs <= end; n += kOutputs) outputs<Vector, kOutputs>(call, n);
  for (; n < end; ++n) outputs<Vector, 1>(call, n);
}

// Not target_clones: the vectors themselves differ, so that the sums fit the registers there are.
#if defined(__x86_64__)
template <class T, class Y>
__attribute__((target("arch=x86-64-v4"))) void range_v4(const Call<T, Y>& call, std::int64_t begin, std::int64_t end) {
  range<Vector16>(call, begin, end);
}
template <class T, class Y>
__attribute__((target("arch=x86-64-v3"))) void range_v3(const Call<T, Y>& call, std::int64_t begin, std::int64_t end) {
  range<Vector8>(call, begin, end);
}
bool has_v4() { return __builtin_cpu_supports("x86-64-v4"); }
bool has_v3() { return __builtin_cpu_supports("x86-64-v3"); }
#else
bool has_v4() { return false; }
#endif
template <class T, class Y>
void range_any(const Call<T, Y>& call, std::int64_t begin, std::int64_t end) {
  range<Vector8>(call, begin, end);
}

template <class T, class Y>
void range_here(const Call<T, Y>& call, std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
  if (has_v4()) return range_v4(call, begin, end);
  if (has_v3()) return range_v3(call, begin, end);
#endif
  range_any(call, begin, end);
}

}  // namespace

template <class T, class Y>
void skinny_gemm_cpu(const SkinnyGemm<T, Y>& p) {
  const PackedRows x = pack(p.x, p.M, p.K, has_v4() ? 16 : 8);
  const std::int64_t num_tiles = (p.N + kOutputs - 1) / kOutputs;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, p.K * kOutputs));
  parallel_ranges(num_tiles, grain, [&](std::int64_t begin, std::int64_t end) {
    range_here(Call<T, Y>{p, x}, begin * kOutputs, std::min(end * kOutputs, p.N));
  });
}

template void skinny_gemm_cpu(const SkinnyGemm<float, float>&);
template void skinny_gemm_cpu(const SkinnyGemm<Bf16, Bf16>&);
template void skinny_gemm_cpu(const SkinnyGemm<Bf16, float>&);

}  // namespace lora_train::kernels
