// Every output has two vector accumulators along K, in every tile shape, so that the order of additions is the same for
// any number of rows. Up to four rows cost little more than reading the weights: they are streamed, an output at a time
// where x stays in the first cache, as memory is fastest in one stream, else four outputs at a time. With more rows,
// arithmetic dominates: a few outputs of a block of rows go through K in chunks that stay in the first cache.
// bf16 weights are read as 32-bit words, whose high and low halves are the odd and the even elements; x is laid out to
// match. Beside a bf16 x on a processor that multiplies pairs (AVX512-BF16), a word is an element.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "gemm_parts.h"
#include "launch/elements.h"
#include "launch/machine.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kOutputs = 4;            // per tile
constexpr std::int64_t kGrainElements = 65536;  // weights per thread; with fewer, another one costs more than it gains

typedef float Vector4 __attribute__((vector_size(16)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));

struct alignas(64) CacheLine {
  float values[16];
};

/// Two values that follow each other in K. Only with MachineV4 and kHasAvx512Bf16.
struct Bf16Pair {
  Bf16 values[2];
};

/// x as words [M, stride], fp32 or pairs, padded with zeros to whole steps; in a step of 2 * lanes elements, the first
/// half goes with the first vector of sums.
struct PackedRows {
  std::vector<CacheLine> lines;            // aligned: a vector across two lines is loaded in two accesses
  std::int64_t stride = 0, num_steps = 0;  ///< whole steps of K
  float* row(std::int64_t m) { return lines.data()->values + m * stride; }
  const float* row(std::int64_t m) const { return lines.data()->values + m * stride; }
};

template <class Vector>
constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(float);

template <class T>
constexpr std::int64_t kLine = sizeof(CacheLine) / sizeof(T);  // elements of a cache line

/// The position of element i of a step in the packed x.
template <class W>
constexpr std::int64_t packed_place(std::int64_t i, std::int64_t lanes) {
  return std::is_same_v<W, Bf16> ? (i % 2) * lanes + i / 2 : i;
}

LORA_TRAIN_INLINE float word_of(float x) { return x; }
LORA_TRAIN_INLINE float word_of(Bf16 x) { return load(&x); }
LORA_TRAIN_INLINE float word_of(Bf16Pair x) {
  float word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

template <class W, class X>
PackedRows pack(Rows<const X> x, std::int64_t M, std::int64_t K, std::int64_t lanes) {
  const std::int64_t step = 2 * lanes;
  PackedRows packed;
  packed.num_steps = K / step;
  packed.stride = round_up(K, step);
  packed.lines.resize(static_cast<std::size_t>(ceil_div(M * packed.stride, kLine<float>)));
  for (std::int64_t m = 0; m < M; ++m) {
    float* const row = packed.row(m);
    for (std::int64_t begin = 0; begin < K; begin += step) {
      const std::int64_t count = std::min(step, K - begin);
      for (std::int64_t i = 0; i < count; ++i) row[begin + packed_place<W>(i, lanes)] = word_of(x[m][begin + i]);
    }
  }
  return packed;
}

/// The two vectors of a step of weights.
template <class Vector, class W>
LORA_TRAIN_INLINE void load_step(const W* from, Vector& first, Vector& second) {
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
LORA_TRAIN_INLINE float sum_of(const Vector4& v) {
  const auto two = __builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3);
  return two[0] + two[1];
}
LORA_TRAIN_INLINE float sum_of(const Vector8& v) {
  return sum_of(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
LORA_TRAIN_INLINE float sum_of(const Vector16& v) {
  return sum_of(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

template <class W, class Vector>
LORA_TRAIN_INLINE void multiply_add(Vector& sums, const Vector& weights, const Vector& x) {
  if constexpr (std::is_same_v<W, Bf16Pair>) {
    Vector result = sums;  // a copy: gcc would keep an array of operands in memory
    asm("vdpbf16ps %2, %1, %0" : "+v"(result) : "v"(weights), "v"(x));  // the intrinsic needs another target
    sums = result;
  } else {
    sums += weights * x;
  }
}

/// Sums of a tile: two vectors for each output and row.
template <class Vector, int kTileOutputs, int kTileRows>
struct Sums {
  Vector of[kTileOutputs][kTileRows][2] = {};
};

// A step of 2 * lanes features: weights at from + o * stride, the packed x at x + r * x_stride.
template <class Vector, int kTileOutputs, int kTileRows, class W>
LORA_TRAIN_INLINE void add_step(const W* from, std::int64_t stride, const float* x, std::int64_t x_stride,
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
      multiply_add<W>(sums.of[o][r][0], first, x0[r]);
      multiply_add<W>(sums.of[o][r][1], second, x1[r]);
    }
  }
}

/// Values common to all tiles of a call.
template <class Product>
struct Call {
  const Product& p;
  const PackedRows& x;
};

/// Writes output n of row m from its two sums.
template <class Vector, class Product>
LORA_TRAIN_INLINE void finish(const Product& p, std::int64_t n, std::int64_t m, const Vector& first,
                              const Vector& second) {
  float sum = p.alpha * sum_of(first + second);
  if (p.bias != nullptr) sum += load(p.bias + n);
  if (p.residual.data != nullptr) sum += load(p.residual[m] + n);
  store(p.y[m] + n, sum);
}

// Outputs [n, n + kTileOutputs) of rows [m, m + kTileRows). With kFetches, prefetches the weights of the next tile:
// rows are often too short for the hardware prefetcher.
template <class Vector, int kTileOutputs, int kTileRows, bool kFetches, class Product>
LORA_TRAIN_INLINE void tile(const Call<Product>& call, std::int64_t n, std::int64_t m) {
  using W = typename Product::Weight;
  constexpr std::int64_t kStep = 2 * kLanes<Vector>;
  const Product& p = call.p;
  const std::int64_t stride = p.weight.stride, x_stride = call.x.stride, whole = call.x.num_steps * kStep;
  const W* const from = p.weight[n];
  const float* const x = call.x.row(m);
  Sums<Vector, kTileOutputs, kTileRows> sums;
  for (std::int64_t k = 0; k < whole; k += kStep) {
    if constexpr (kFetches) {
#pragma GCC unroll 8
      for (int o = 0; o < kTileOutputs; ++o) {
#pragma GCC unroll 2
        for (std::int64_t line = 0; line < kStep; line += kLine<W>) {
          __builtin_prefetch(from + (o + kTileOutputs) * stride + k + line);
        }
      }
    }
    add_step(from + k, stride, x + k, x_stride, sums);
  }
  if (whole < p.K) {
    W tail[kTileOutputs * kStep] = {};
    for (int o = 0; o < kTileOutputs; ++o) {
      std::memcpy(tail + o * kStep, from + o * stride + whole, static_cast<std::size_t>(p.K - whole) * sizeof(W));
    }
    add_step(tail, kStep, x + whole, x_stride, sums);
  }
#pragma GCC unroll 8
  for (int o = 0; o < kTileOutputs; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) finish(p, n + o, m + r, sums.of[o][r][0], sums.of[o][r][1]);
  }
}

constexpr std::int64_t kMaxStreamedRows = 4;
constexpr std::int64_t kNearWords = 4096;  // half of a small first cache

/// Output n of all rows.
template <class Vector, class Product>
LORA_TRAIN_INLINE void output(const Call<Product>& call, std::int64_t n) {
  switch (call.p.M) {
    case 1: return tile<Vector, 1, 1, false>(call, n, 0);
    case 2: return tile<Vector, 1, 2, false>(call, n, 0);
    case 3: return tile<Vector, 1, 3, false>(call, n, 0);
    default: return tile<Vector, 1, kMaxStreamedRows, false>(call, n, 0);
  }
}

/// Outputs [n, n + kOutputs) of all rows.
template <class Vector, class Product>
LORA_TRAIN_INLINE void outputs(const Call<Product>& call, std::int64_t n) {
  const std::int64_t M = call.p.M;
  if (M == 1) return tile<Vector, kOutputs, 1, true>(call, n, 0);
  tile<Vector, kOutputs, 2, true>(call, n, 0);
  std::int64_t m = 2;
  for (; m + 2 <= M; m += 2) tile<Vector, kOutputs, 2, false>(call, n, m);
  if (m < M) tile<Vector, kOutputs, 1, false>(call, n, m);
}

// More rows.

constexpr std::int64_t kBlockRows = 16, kChunk = 256;
template <class Vector>
constexpr int kBlockOutputs = sizeof(Vector) == 64 ? 6 : 3;  // times two rows and two sums: they fit the registers

/// The two sums of each output and row of a block.
template <class Vector, int kTileOutputs>
using BlockSums = Vector[kTileOutputs][kBlockRows][2];

/// Rows of words of a block's weights or of the packed x, `stride` apart.
struct ChunkRows {
  const float* data;
  std::int64_t stride;
};

/// Adds `num_steps` steps to the sums of rows [row, row + kTileRows) of the block.
template <class W, int kTileRows, class Vector, int kTileOutputs>
LORA_TRAIN_INLINE void add_chunk(ChunkRows weights, ChunkRows x, std::int64_t num_steps,
                                 BlockSums<Vector, kTileOutputs>& block, std::int64_t row) {
  Vector sums[kTileOutputs][kTileRows][2];
#pragma GCC unroll 8
  for (int o = 0; o < kTileOutputs; ++o) std::memcpy(sums[o], block[o][row], sizeof sums[o]);
  for (std::int64_t step = 0; step < num_steps; ++step) {
#pragma GCC unroll 2
    for (std::int64_t half = 0; half < 2; ++half) {
      const std::int64_t k = (2 * step + half) * kLanes<Vector>;
      Vector features[kTileRows];
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) std::memcpy(&features[r], x.data + r * x.stride + k, sizeof(Vector));
#pragma GCC unroll 8
      for (int o = 0; o < kTileOutputs; ++o) {
        Vector weight;
        std::memcpy(&weight, weights.data + o * weights.stride + k, sizeof weight);
        hold_in_register(weight);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) multiply_add<W>(sums[o][r][half], weight, features[r]);
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kTileOutputs; ++o) std::memcpy(block[o][row], sums[o], sizeof sums[o]);
}

/// A chunk of weights as words in the order of the packed x, padded with zeros to whole steps.
template <class Vector, class W>
LORA_TRAIN_INLINE void pack_chunk(const W* from, std::int64_t count, float* to) {
  constexpr std::int64_t kStep = 2 * kLanes<Vector>;
  const auto pack_step = [&](const W* step, std::int64_t k) {
    Vector first, second;
    load_step(step, first, second);
    std::memcpy(to + k, &first, sizeof first);
    std::memcpy(to + k + kLanes<Vector>, &second, sizeof second);
  };
  std::int64_t k = 0;
  for (; k + kStep <= count; k += kStep) pack_step(from + k, k);
  if (k == count) return;
  W tail[kStep] = {};
  std::memcpy(tail, from + k, static_cast<std::size_t>(count - k) * sizeof(W));
  pack_step(tail, k);
}

/// Adds features [k, k + kChunk) to outputs [n, n + kTileOutputs) of rows [m, m + num_rows).
template <class Vector, int kTileOutputs, class Product>
LORA_TRAIN_INLINE void add_features(const Call<Product>& call, std::int64_t n, std::int64_t m, std::int64_t num_rows,
                                    std::int64_t k, BlockSums<Vector, kTileOutputs>& sums) {
  constexpr std::int64_t kStep = 2 * kLanes<Vector>;
  using W = typename Product::Weight;
  const Product& p = call.p;
  const W* const from = p.weight[n] + k;
  const std::int64_t count = std::min(kChunk, p.K - k), num_steps = ceil_div(count, kStep);
  CacheLine packed[kTileOutputs][kChunk / kLine<float>];
  ChunkRows weights{packed[0][0].values, kChunk};
  if (sizeof(W) == sizeof(float) && count % kStep == 0) {
    weights = {reinterpret_cast<const float*>(from), p.weight.stride};
  } else {
    for (int o = 0; o < kTileOutputs; ++o) pack_chunk<Vector>(from + o * p.weight.stride, count, packed[o][0].values);
  }
  // Meanwhile prefetches the weights of the next block, one output per tile of rows: more at once would block loads.
  int num_fetched = 0;
  const auto fetch = [&](int end) {
    for (; num_fetched < end; ++num_fetched) {
      const W* const next = from + (num_fetched + kTileOutputs) * p.weight.stride;
      for (std::int64_t i = 0; i < count; i += kLine<W>) __builtin_prefetch(next + i);
    }
  };
  std::int64_t row = 0;
  for (; row + 2 <= num_rows; row += 2) {
    fetch(std::min(num_fetched + 1, kTileOutputs));
    add_chunk<W, 2>(weights, {call.x.row(m + row) + k, call.x.stride}, num_steps, sums, row);
  }
  fetch(kTileOutputs);
  if (row == num_rows) return;
  add_chunk<W, 1>(weights, {call.x.row(m + row) + k, call.x.stride}, num_steps, sums, row);
}

/// Outputs [n, n + kTileOutputs) of all rows.
template <class Vector, int kTileOutputs, class Product>
LORA_TRAIN_INLINE void blocks(const Call<Product>& call, std::int64_t n) {
  for (std::int64_t m = 0; m < call.p.M; m += kBlockRows) {
    const std::int64_t num_rows = std::min(kBlockRows, call.p.M - m);
    BlockSums<Vector, kTileOutputs> sums = {};
    for (std::int64_t k = 0; k < call.p.K; k += kChunk) {
      add_features<Vector, kTileOutputs>(call, n, m, num_rows, k, sums);
    }
    for (std::int64_t r = 0; r < num_rows; ++r) {
      for (std::int64_t o = 0; o < kTileOutputs; ++o) finish(call.p, n + o, m + r, sums[o][r][0], sums[o][r][1]);
    }
  }
}

template <class Vector, class Product>
LORA_TRAIN_INLINE void range(const Call<Product>& call, std::int64_t begin, std::int64_t end) {
  std::int64_t n = begin;
  if (call.p.M > kMaxStreamedRows) {
    constexpr int kTile = kBlockOutputs<Vector>;
    for (; n + kTile <= end; n += kTile) blocks<Vector, kTile>(call, n);
    for (; n < end; ++n) blocks<Vector, 1>(call, n);
    return;
  }
  // With vectors of four, the few sums of one output would be waited for.
  const bool is_near = kLanes<Vector> > 4 && call.p.M * call.x.stride <= kNearWords;
  if (!is_near) {
    for (; n + kOutputs <= end; n += kOutputs) outputs<Vector>(call, n);
  }
  for (; n < end; ++n) output<Vector>(call, n);
}

template <class Machine, class X, class W, class Y>
void run(const SkinnyGemm<X, W, Y>& p) {
  using Vector = typename Machine::Vector;
  const std::int64_t num_tiles = ceil_div(p.N, kOutputs);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, p.K * kOutputs));
  const PackedRows x = pack<W>(p.x, p.M, p.K, kLanes<Vector>);
  const Call<SkinnyGemm<X, W, Y>> call{p, x};
  parallel_ranges(num_tiles, grain, [&](std::int64_t begin, std::int64_t end) {
    Machine::template call<range<Vector, SkinnyGemm<X, W, Y>>>(call, begin * kOutputs, std::min(end * kOutputs, p.N));
  });
}

#if defined(__x86_64__)
Rows<const Bf16Pair> pairs(Rows<const Bf16> rows) {
  return {reinterpret_cast<const Bf16Pair*>(rows.data), rows.stride / 2};
}

/// False if it does not apply.
template <class Y>
bool run_pairs(const SkinnyGemm<Bf16, Bf16, Y>& p) {
  const bool applies =
      kHasAvx512Bf16 && has_avx512() && p.K % 2 == 0 && p.x.stride % 2 == 0 && p.weight.stride % 2 == 0;
  if (!applies) return false;
  run<MachineV4>(SkinnyGemm<Bf16Pair, Bf16Pair, Y>{pairs(p.x), pairs(p.weight), p.bias, p.residual, p.y, p.alpha, p.M,
                                                   p.N, p.K / 2});
  return true;
}
#endif
template <class P>
bool run_pairs(const P&) {
  return false;
}

}  // namespace

template <class X, class W, class Y>
void skinny_gemm_cpu(const SkinnyGemm<X, W, Y>& p) {
  if (run_pairs(p)) return;
  on_this_machine([&]<class Machine>(Machine) { run<Machine>(p); });
}

bool has_bf16_gemm() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("x86-64-v4");
#else
  return true;
#endif
}

template void skinny_gemm_cpu(const SkinnyGemm<float, float, float>&);
template void skinny_gemm_cpu(const SkinnyGemm<float, Bf16, float>&);
template void skinny_gemm_cpu(const SkinnyGemm<Bf16, Bf16, Bf16>&);
template void skinny_gemm_cpu(const SkinnyGemm<Bf16, Bf16, float>&);

}  // namespace lora_train::kernels
