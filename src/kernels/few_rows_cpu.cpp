// Every output has two vectors of sums that go along K, whatever tile it is in: one order for any number of rows.
// bf16 weights are read as 32-bit words, whose high and low halves are the odd and the even elements; x is laid out to match.
#include "few_rows_cpu.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "lora_train/kernels/parallel.h"
#include "vector_math.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kOutputs = 4;           // of a tile
constexpr std::int64_t kGrainElements = 65536;  // weights per thread below which another one costs more than it gains

/// x as fp32 [M, stride], padded with zeros to whole steps; in a step of 2 * lanes elements the first half meets the first
/// vector of sums.
struct PackedRows {
  std::vector<float> values;
  std::int64_t stride = 0, num_steps = 0;  ///< whole steps of K
};

template <class Vector>
constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(float);

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
    for (std::int64_t k = 0; k < K; ++k) row[k / step * step + packed_place<T>(k % step, lanes)] = load(x[m] + k);
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

template <class Vector>
LORA_TRAIN_INLINE float sum_of(const Vector& first, const Vector& second) {
  const Vector both = first + second;
  float lanes[kLanes<Vector>];
  std::memcpy(lanes, &both, sizeof lanes);
#pragma GCC unroll 4
  for (std::int64_t half = kLanes<Vector> / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// sums[o][r] = weight[n + o] . x[m + r]; `tail` holds the rest of each weight row behind the whole steps, padded.
template <class Vector, int kTileOutputs, int kTileRows, class T>
LORA_TRAIN_INLINE void tile(Rows<const T> weight, const PackedRows& x, std::int64_t m, const T* tail, bool has_tail,
                            float* sums) {
  constexpr std::int64_t kStep = 2 * kLanes<Vector>;
  Vector acc[kTileOutputs][kTileRows][2] = {};
  const float* rows = x.values.data() + m * x.stride;
  const auto add_step = [&](const T* const* from, std::int64_t place) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int o = 0; o < kTileOutputs; ++o) {
      Vector first, second;
      load_step(from[o], first, second);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        Vector x0, x1;
        std::memcpy(&x0, rows + r * x.stride + place, sizeof x0);
        std::memcpy(&x1, rows + r * x.stride + place + kLanes<Vector>, sizeof x1);
        acc[o][r][0] += first * x0;
        acc[o][r][1] += second * x1;
      }
    }
  };
  const T* from[kTileOutputs];
  for (std::int64_t s = 0; s < x.num_steps; ++s) {
#pragma GCC unroll 8
    for (int o = 0; o < kTileOutputs; ++o) from[o] = weight[o] + s * kStep;
    add_step(from, s * kStep);
  }
  if (has_tail) {
    for (int o = 0; o < kTileOutputs; ++o) from[o] = tail + o * kStep;
    add_step(from, x.num_steps * kStep);
  }
  for (int o = 0; o < kTileOutputs; ++o) {
    for (int r = 0; r < kTileRows; ++r) sums[o * kTileRows + r] = sum_of(acc[o][r][0], acc[o][r][1]);
  }
}

template <class T, class Y>
void finish(const FewRows<T, Y>& p, std::int64_t n, std::int64_t m, float sum) {
  if (p.bias != nullptr) sum += load(p.bias + n);
  if (p.residual.data != nullptr) sum += load(p.residual[m] + n);
  store(p.y[m] + n, sum);
}

/// Outputs [n, n + kTileOutputs) of all rows.
template <class Vector, int kTileOutputs, class T, class Y>
LORA_TRAIN_INLINE void outputs(const FewRows<T, Y>& p, const PackedRows& x, std::int64_t n) {
  constexpr std::int64_t kStep = 2 * kLanes<Vector>;
  const Rows<const T> weight{p.weight[n], p.weight.stride};
  const std::int64_t rest = p.K - x.num_steps * kStep;
  T tail[kTileOutputs * kStep] = {};
  for (int o = 0; o < kTileOutputs && rest > 0; ++o) {
    std::memcpy(tail + o * kStep, weight[o] + x.num_steps * kStep, static_cast<std::size_t>(rest) * sizeof(T));
  }
  float sums[kTileOutputs * 4];
  std::int64_t m = 0;
  const auto run = [&]<int kTileRows>() __attribute__((always_inline)) {
    tile<Vector, kTileOutputs, kTileRows>(weight, x, m, tail, rest > 0, sums);
    for (int o = 0; o < kTileOutputs; ++o) {
      for (int r = 0; r < kTileRows; ++r) finish(p, n + o, m + r, sums[o * kTileRows + r]);
    }
    m += kTileRows;
  };
  while (m + 2 <= p.M) run.template operator()<2>();
  if (m < p.M) run.template operator()<1>();
}

template <class Vector, class T, class Y>
LORA_TRAIN_INLINE void range(const FewRows<T, Y>& p, const PackedRows& x, std::int64_t begin, std::int64_t end) {
  std::int64_t n = begin;
  for (; n + kOutputs <= end; n += kOutputs) outputs<Vector, kOutputs>(p, x, n);
  for (; n < end; ++n) outputs<Vector, 1>(p, x, n);
}

// Not target_clones: the vectors themselves differ, so that the sums fit the registers there are.
typedef float Vector8 __attribute__((vector_size(32)));
#if defined(__x86_64__)
typedef float Vector16 __attribute__((vector_size(64)));
template <class T, class Y>
__attribute__((target("arch=x86-64-v4"))) void range_v4(const FewRows<T, Y>& p, const PackedRows& x, std::int64_t begin,
                                                        std::int64_t end) {
  range<Vector16>(p, x, begin, end);
}
template <class T, class Y>
__attribute__((target("arch=x86-64-v3"))) void range_v3(const FewRows<T, Y>& p, const PackedRows& x, std::int64_t begin,
                                                        std::int64_t end) {
  range<Vector8>(p, x, begin, end);
}
bool has_v4() { return __builtin_cpu_supports("x86-64-v4"); }
bool has_v3() { return __builtin_cpu_supports("x86-64-v3"); }
#else
bool has_v4() { return false; }
#endif
template <class T, class Y>
void range_any(const FewRows<T, Y>& p, const PackedRows& x, std::int64_t begin, std::int64_t end) {
  range<Vector8>(p, x, begin, end);
}

template <class T, class Y>
void range_here(const FewRows<T, Y>& p, const PackedRows& x, std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
  if (has_v4()) return range_v4(p, x, begin, end);
  if (has_v3()) return range_v3(p, x, begin, end);
#endif
  range_any(p, x, begin, end);
}

}  // namespace

template <class T, class Y>
void few_rows_linear_cpu(const FewRows<T, Y>& p) {
  const PackedRows x = pack(p.x, p.M, p.K, has_v4() ? 16 : 8);
  const std::int64_t num_tiles = (p.N + kOutputs - 1) / kOutputs;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, p.K * kOutputs));
  parallel_ranges(num_tiles, grain, [&](std::int64_t begin, std::int64_t end) {
    range_here(p, x, begin * kOutputs, std::min(end * kOutputs, p.N));
  });
}

template void few_rows_linear_cpu(const FewRows<float, float>&);
template void few_rows_linear_cpu(const FewRows<Bf16, Bf16>&);
template void few_rows_linear_cpu(const FewRows<Bf16, float>&);

}  // namespace lora_train::kernels
