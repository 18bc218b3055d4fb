// bf16 with AVX-512: a packed product. Else reads the big matrix once, in blocks of rows and tiles of columns; all R
// sums of a tile stay in registers. Threads own columns, so no sum depends on their number.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "gemm/gemm_parts.h"
#include "launch/elements.h"
#include "launch/machine.h"
#include "lora_parts.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kRows = 64;     // per block: its tile fits L1, its pages fit the L1 TLB
constexpr std::int64_t kColumns = 64;  // per tile: four cache lines of fp32
constexpr int kRanks = 4;              // sums per column held in registers together

/// Columns [first, last) of big [N, C] and the thin matrix as fp32 [N, ranks], padded to a multiple of kRanks.
template <class T>
struct Product {
  Rows<const T> big;
  const float* thin;
  std::int64_t N, ranks, first, last;
  float* sums;  ///< [ranks, last - first]
};

/// Cache lines to fetch while a tile is computed: in every row, lines first, first + step, ... below num_lines.
struct Prefetch {
  const char* rows;
  std::int64_t stride_bytes, first, step, num_lines;
};

// sums[r][c] += sum over n of thin[n][r] * block[n][c], for kRanks values of r and kVectors vectors of c.
template <class Vector, int kVectors>
LORA_TRAIN_INLINE void add_tile(const float* block, std::int64_t stride, std::int64_t num_rows, const float* thin,
                                std::int64_t ranks, float* sums, std::int64_t sums_stride, const Prefetch& ahead) {
  constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(float);
  Vector acc[kRanks][kVectors] = {};
  for (std::int64_t n = 0; n < num_rows; ++n) {
    for (std::int64_t line = ahead.first; line < ahead.num_lines; line += ahead.step) {
      __builtin_prefetch(ahead.rows + n * ahead.stride_bytes + line * 64);
    }
    Vector row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {  // one by one: a copy of the whole array would go through the stack
      std::memcpy(&row[v], block + n * stride + v * kLanes, sizeof row[v]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRanks; ++r) {
      const float factor = thin[n * ranks + r];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] += factor * row[v];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRanks; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* to = sums + r * sums_stride + v * kLanes;
      Vector old;
      std::memcpy(&old, to, sizeof old);
      old += acc[r][v];
      std::memcpy(to, &old, sizeof old);
    }
  }
}

// The tile as fp32 rows of kColumns, zeros to the right of its width.
template <class T>
LORA_TRAIN_INLINE void pack_tile(Rows<const T> big, std::int64_t n, std::int64_t num_rows, std::int64_t c,
                                 std::int64_t width, float* packed) {
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const T* from = big[n + i] + c;
    if (width == kColumns) {
#pragma omp simd
      for (std::int64_t j = 0; j < kColumns; ++j) packed[i * kColumns + j] = load(from + j);
    } else {
      for (std::int64_t j = 0; j < kColumns; ++j) packed[i * kColumns + j] = j < width ? load(from + j) : 0.0F;
    }
  }
}

template <class Machine, class T>
LORA_TRAIN_INLINE void multiply(const Product<T>& p) {
  using Vector = typename Machine::Vector;
  constexpr int kVectors = 2 * Machine::kRows / kRanks;
  constexpr std::int64_t kStep = kVectors * static_cast<std::int64_t>(sizeof(Vector) / sizeof(float));
  alignas(64) float packed[kRows * kColumns];
  alignas(64) float edge[kRanks * kColumns];
  const std::int64_t sums_stride = p.last - p.first;
  for (std::int64_t n = 0; n < p.N; n += kRows) {
    const std::int64_t num_rows = std::min(kRows, p.N - n);
    for (std::int64_t c = p.first; c < p.last; c += kColumns) {
      const std::int64_t width = std::min(kColumns, p.last - c);
      const bool is_direct = std::is_same_v<T, float> && width == kColumns;
      if (!is_direct) pack_tile(p.big, n, num_rows, c, width, packed);
      const float* block = packed;
      std::int64_t stride = kColumns;
      if constexpr (std::is_same_v<T, float>) {
        block = is_direct ? p.big[n] + c : packed;
        stride = is_direct ? p.big.stride : kColumns;
      }
      for (std::int64_t r = 0; r < p.ranks; r += kRanks) {
        float* sums = p.sums + r * sums_stride + (c - p.first);
        float* to = width == kColumns ? sums : edge;
        const std::int64_t to_stride = width == kColumns ? sums_stride : kColumns;
        if (width != kColumns) std::fill(edge, edge + kRanks * kColumns, 0.0F);
        for (std::int64_t j = 0; j < kColumns; j += kStep) {
          // Prefetches the next tile, a few lines per pass over this one.
          const Prefetch ahead{reinterpret_cast<const char*>(p.big[n] + c + kColumns),
                               p.big.stride * static_cast<std::int64_t>(sizeof(T)),
                               (r / kRanks) * (kColumns / kStep) + j / kStep, p.ranks / kRanks * (kColumns / kStep),
                               kColumns * static_cast<std::int64_t>(sizeof(T)) / 64};
          add_tile<Vector, kVectors>(block + j, stride, num_rows, p.thin + n * p.ranks + r, p.ranks, to + j, to_stride,
                                     ahead);
        }
        for (std::int64_t k = 0; width != kColumns && k < kRanks; ++k) {
          for (std::int64_t j = 0; j < width; ++j) sums[k * sums_stride + j] += edge[k * kColumns + j];
        }
      }
    }
  }
}

// Tokens of a packed product, and of its last one a multiple: each number of them is a micro-kernel that is kept.
constexpr std::int64_t kTokens = 1024, kTokenStep = 64;

/// sums [R, C] += thin^T big, for at most kTokens tokens.
template <class T>
void add_tokens(Rows<const T> big, Rows<const T> thin, std::int64_t N, std::int64_t C, std::int64_t R, float* sums) {
  std::vector<T> rows(static_cast<std::size_t>(R * kTokens));  // thin^T, zeros after the last token
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t n = 0; n < N; ++n) rows[static_cast<std::size_t>(r * kTokens + n)] = thin[n][r];
  }
  PackedGemm<T, T, float> product{};
  product.a = {rows.data(), kTokens};
  product.b = big.data;
  product.b_stride = big.stride;
  product.residual = {sums, C};
  product.y = {sums, C};
  product.alpha = 1;
  product.M = R;
  product.N = C;
  product.K = round_up(N, kTokenStep);
  product.num_b_rows = N;
  packed_gemm_cpu(product);
}

/// add(sums, first, last): takes thin^T big of columns [first, last), [at least R, last - first]. Sums in fp32.
template <class T, class Add>
void for_column_ranges(Rows<const T> big, Rows<const T> thin, std::int64_t N, std::int64_t C, std::int64_t R,
                       const Add& add) {
  if (std::is_same_v<T, Bf16> && has_avx512()) {
    std::vector<float> sums(static_cast<std::size_t>(R * C));
    for (std::int64_t n = 0; n < N; n += kTokens) {
      const Rows<const T> big_part{big[n], big.stride}, thin_part{thin[n], thin.stride};
      add_tokens(big_part, thin_part, std::min(kTokens, N - n), C, R, sums.data());
    }
    return add(sums.data(), 0, C);
  }
  const std::int64_t ranks = (R + kRanks - 1) / kRanks * kRanks;
  std::vector<float> thin_fp32(static_cast<std::size_t>(N * ranks));
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t r = 0; r < R; ++r) thin_fp32[static_cast<std::size_t>(n * ranks + r)] = load(thin[n] + r);
  }
  const std::int64_t num_tiles = (C + kColumns - 1) / kColumns;
  parallel_ranges(num_tiles, row_grain(kColumns * N), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kColumns, last = std::min(end * kColumns, C);
    std::vector<float> sums(static_cast<std::size_t>(ranks * (last - first)));
    const Product<T> product{big, thin_fp32.data(), N, ranks, first, last, sums.data()};
    on_this_machine([&]<class Machine>(Machine) { Machine::template call<multiply<Machine, T>>(product); });
    add(sums.data(), first, last);
  });
}

}  // namespace

template <class T>
void lora_grad_b_cpu(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, std::int64_t N) {
  for (const LoraTarget& target : targets) {
    const Rows<const T> big{dy.data + target.out_begin, dy.stride}, thin{s.data + target.column, s.stride};
    const std::int64_t O = target.out_end - target.out_begin;
    for_column_ranges(big, thin, N, O, target.rank, [&](const float* sums, std::int64_t first, std::int64_t last) {
      for (std::int64_t o = first; o < last; ++o) {
        for (std::int64_t r = 0; r < target.rank; ++r) {
          target.grad[o][r] += target.scale * sums[r * (last - first) + (o - first)];
        }
      }
    });
  }
}

template <class T>
void lora_grad_a_cpu(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, std::int64_t N, std::int64_t D) {
  const std::int64_t num_columns = targets.num_columns();
  for_column_ranges(x, ds, N, D, num_columns, [&](const float* sums, std::int64_t first, std::int64_t last) {
    for (const LoraTarget& target : targets) {
      for (std::int64_t r = 0; r < target.rank; ++r) {
        const float* const from = sums + (target.column + r) * (last - first);
        for (std::int64_t d = first; d < last; ++d) target.grad[r][d] += target.scale * from[d - first];
      }
    }
  });
}

LORA_TRAIN_INSTANTIATE(lora_grad_b_cpu);
LORA_TRAIN_INSTANTIATE(lora_grad_a_cpu);

}  // namespace lora_train::kernels
