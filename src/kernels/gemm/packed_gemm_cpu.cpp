// Columns of b are packed into panels in the order in which the micro-kernel reads them, and each panel meets all rows
// of a while it stays in a cache. An element of b is packed once for all rows: one copy against 2 M FLOPs.
#include <algorithm>
#include <type_traits>

#include "gemm_parts.h"
#include "launch/avx512.h"
#include "launch/elements.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
#if defined(__x86_64__)
namespace {

constexpr std::int64_t kPanel = 64;           // columns of a panel at most
constexpr std::int64_t kMostPanels = 4;       // packed at once
constexpr std::int64_t kBlockRows = 64;       // rows of a tile of sums, 16 KiB
constexpr std::int64_t kMostSlab = 1024;      // of K packed at once: 256 KiB of a panel in fp32
constexpr std::int64_t kMostRows = 4096;      // that keep sums at once, if K has several slabs
constexpr std::int64_t kLeastWork = 1 << 20;  // FLOPs of a task; with fewer, another thread costs more than it gains

// A word is what one lane of the micro-kernel multiplies: a float, or two bf16 values that follow each other in K.
template <class X>
constexpr std::int64_t kWord = 4 / static_cast<std::int64_t>(sizeof(X));  // elements of K

/// Words [0, 16) of a row of `count` elements, zero past its end.
template <class X>
LORA_TRAIN_V4_INLINE __m512i load_words(const float* row, std::int64_t count) {
  return _mm512_castps_si512(masked_load16(row, first_lanes(count)));
}
template <class X>
LORA_TRAIN_V4_INLINE __m512i load_words(const Bf16* row, std::int64_t count) {
  if constexpr (std::is_same_v<X, float>) {
    return _mm512_castps_si512(masked_load16(row, first_lanes(count)));
  } else {
    const auto mask =
        count >= 32 ? __mmask32{0xFFFFFFFF} : static_cast<__mmask32>((1u << std::max<std::int64_t>(count, 0)) - 1);
    return _mm512_maskz_loadu_epi16(mask, row);
  }
}

/// Rows [k, k + size) of b, of which the first `num_rows` are not zero.
struct Slab {
  std::int64_t k, size, num_rows;
};

/// Columns [n, n + width) of b; `padded` of them with zeros. A slab of it is packed as words [size / kWord, padded].
struct Panel {
  std::int64_t n, width, padded;
};

/// The panels that are packed at once, as even as possible: a narrow one would be slow.
struct Group {
  Panel panels[kMostPanels];
  std::int64_t num_panels;

  Group(std::int64_t column, std::int64_t end_column) {
    const std::int64_t num_lanes = ceil_div(end_column - column, kLanes);
    num_panels = ceil_div(num_lanes * kLanes, kPanel);
    for (std::int64_t i = 0; i < num_panels; ++i) {
      const std::int64_t begin = num_lanes * i / num_panels * kLanes, end = num_lanes * (i + 1) / num_panels * kLanes;
      panels[i] = {column + begin, std::min(end_column - column, end) - begin, end - begin};
    }
  }
  /// Where the packed panel i begins.
  std::int64_t place(std::int64_t i, const Slab& slab) const { return (panels[i].n - panels[0].n) * slab.size; }
};

/// From b [K, N], whose rows are read once.
template <class X, class W, class Y>
LORA_TRAIN_V4_INLINE void pack_rows(const PackedGemm<X, W, Y>& p, const Group& group, const Slab& slab, X* packed) {
  constexpr std::int64_t kAhead = 16;  // rows are too short for the processor to foresee the next
  for (std::int64_t k = 0; k < slab.size; k += kWord<X>) {
    const W* const row = p.b + (slab.k + k) * p.b_stride;
    for (std::int64_t i = 0; i < group.num_panels; ++i) {
      const Panel& panel = group.panels[i];
      X* const to = packed + group.place(i, slab) + k * panel.padded;
      for (std::int64_t j = 0; j < panel.padded; j += kLanes) {
        const std::int64_t count = k < slab.num_rows ? panel.width - j : 0;
        __builtin_prefetch(row + kAhead * p.b_stride + panel.n + j);
        if constexpr (kWord<X> == 2) __builtin_prefetch(row + (kAhead + 1) * p.b_stride + panel.n + j);
        __m512i words = load_words<float>(row + panel.n + j, count);
        if constexpr (kWord<X> == 2) {  // the row below goes into the high halves
          const W* const below = row + p.b_stride + panel.n + j;
          words = _mm512_or_si512(_mm512_srli_epi32(words, 16),
                                  load_words<float>(below, k + 1 < slab.num_rows ? count : 0));
        }
        _mm512_storeu_si512(to + j * kWord<X>, words);
      }
    }
  }
}

/// A panel from b's transpose [N, K].
template <class X, class W, class Y>
LORA_TRAIN_V4_INLINE void pack_columns(const PackedGemm<X, W, Y>& p, const Panel& panel, const Slab& slab, X* to) {
  constexpr std::int64_t kStep = kLanes * kWord<X>;
  for (std::int64_t j = 0; j < panel.padded; j += kLanes) {
    for (std::int64_t k = 0; k < slab.size; k += kStep) {
      __m512i words[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const bool is_inside = j + i < panel.width;
        const W* const row = p.b + (panel.n + (is_inside ? j + i : 0)) * p.b_stride + slab.k + k;
        words[i] = load_words<X>(row, is_inside ? slab.num_rows - k : 0);
      }
      transpose(words);
      const std::int64_t num_rows = std::min(kLanes, (slab.size - k) / kWord<X>);
      X* const block = to + k * panel.padded + j * kWord<X>;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i < num_rows) _mm512_storeu_si512(block + i * panel.padded * kWord<X>, words[i]);
      }
    }
  }
}

template <class X, class W, class Y>
LORA_TRAIN_V4 void pack(const PackedGemm<X, W, Y>& p, const Group& group, const Slab& slab, X* packed) {
  if (!p.is_b_transposed) return pack_rows(p, group, slab, packed);
  for (std::int64_t i = 0; i < group.num_panels; ++i) {
    pack_columns(p, group.panels[i], slab, packed + group.place(i, slab));
  }
}

/// y = alpha sums + bias + residual of a row of a tile.
template <bool kHasBias, bool kHasResidual, class Y>
LORA_TRAIN_V4_INLINE void finish_row(const float* sums, float alpha, const Y* bias, const Y* residual,
                                     std::int64_t width, Y* y) {
#pragma GCC ivdep
  for (std::int64_t j = 0; j < width; ++j) {
    float value = alpha * sums[j];
    if constexpr (kHasBias) value += load(bias + j);
    if constexpr (kHasResidual) value += load(residual + j);
    store(y + j, value);
  }
}

template <class X, class W, class Y>
LORA_TRAIN_V4_INLINE void finish_tile(const PackedGemm<X, W, Y>& p, const Panel& panel, std::int64_t m,
                                      std::int64_t num_rows, const float* sums) {
  const Y* const bias = p.bias != nullptr ? p.bias + panel.n : nullptr;
  for (std::int64_t i = 0; i < num_rows; ++i, sums += panel.padded) {
    Y* const y = p.y[m + i] + panel.n;
    const Y* const residual = p.residual.data != nullptr ? p.residual[m + i] + panel.n : nullptr;
    if (bias == nullptr && residual == nullptr) {
      finish_row<false, false>(sums, p.alpha, bias, residual, panel.width, y);
    } else if (residual == nullptr) {
      finish_row<true, false>(sums, p.alpha, bias, residual, panel.width, y);
    } else if (bias == nullptr) {
      finish_row<false, true>(sums, p.alpha, bias, residual, panel.width, y);
    } else {
      finish_row<true, true>(sums, p.alpha, bias, residual, panel.width, y);
    }
  }
}

/// Memory of a thread, kept for its next product.
struct Scratch {
  Buffer<char> bytes;
  std::int64_t size = 0;

  void* reserve(std::int64_t needed) {
    if (size < needed) {
      bytes.reset();
      bytes = make_buffer<char>(size = needed);
    }
    return bytes.get();
  }
};

/// Rows [row, end_row) of columns [column, end_column).
struct Task {
  std::int64_t row, end_row, column, end_column;
};

/// Adds a slab to the sums of a tile, or begins them. Rows are split into powers of two: each size is a micro-kernel
/// that is generated once.
template <class X, class W, class Y>
void multiply_tile(const PackedGemm<X, W, Y>& p, const Slab& slab, std::int64_t m, std::int64_t num_rows,
                   const X* packed, std::int64_t width, float* sums) {
  std::int64_t done = 0;
  for (std::int64_t rows = kBlockRows; done < num_rows; rows /= 2) {
    if (num_rows - done < rows) continue;
    brgemm({rows, width, slab.size, p.a.stride, width, width, slab.k > 0}, p.a[m + done] + slab.k, packed,
           sums + done * width);
    done += rows;
  }
}

/// A task of at most kMostPanels panels and kMostRows rows.
template <class X, class W, class Y>
LORA_TRAIN_V4 void run_group(const PackedGemm<X, W, Y>& p, const Task& task) {
  thread_local Scratch scratch;
  const Group group(task.column, task.end_column);
  const std::int64_t padded =
      group.panels[group.num_panels - 1].n + group.panels[group.num_panels - 1].padded - task.column;
  const std::int64_t num_slabs = ceil_div(p.K, kMostSlab);
  const std::int64_t slab_size = round_up(ceil_div(p.K, num_slabs), 2 * kLanes);
  const std::int64_t kept_rows = num_slabs > 1 ? task.end_row - task.row : kBlockRows;
  X* const packed = static_cast<X*>(
      scratch.reserve(padded * (slab_size * std::int64_t{sizeof(X)} + kept_rows * std::int64_t{sizeof(float)})));
  float* const sums = reinterpret_cast<float*>(packed + padded * slab_size);
  for (std::int64_t k = 0; k < p.K; k += slab_size) {
    const std::int64_t size = std::min(slab_size, p.K - k);
    const Slab slab{k, size, std::min(size, p.num_b_rows - k)};
    pack(p, group, slab, packed);
    for (std::int64_t m = task.row; m < task.end_row; m += kBlockRows) {
      const std::int64_t num_rows = std::min(kBlockRows, task.end_row - m);
      for (std::int64_t i = 0; i < group.num_panels; ++i) {
        const Panel& panel = group.panels[i];
        float* const tile =
            num_slabs == 1 ? sums : sums + (panel.n - task.column) * kept_rows + (m - task.row) * panel.padded;
        multiply_tile(p, slab, m, num_rows, packed + group.place(i, slab), panel.padded, tile);
        if (k + size == p.K) finish_tile(p, panel, m, num_rows, tile);
      }
    }
  }
}

/// Part i of n even parts of `count` columns, in whole vectors: its first column.
std::int64_t first_column(std::int64_t count, std::int64_t i, std::int64_t n) {
  return std::min(count, ceil_div(count, kLanes) * i / n * kLanes);
}

template <class X, class W, class Y>
void run_task(const PackedGemm<X, W, Y>& p, const Task& task) {
  const std::int64_t num_columns = task.end_column - task.column;
  const std::int64_t num_groups = ceil_div(num_columns, kMostPanels * kPanel);
  for (std::int64_t m = task.row; m < task.end_row; m += kMostRows) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      run_group(p, {m, std::min(m + kMostRows, task.end_row), task.column + first_column(num_columns, g, num_groups),
                    task.column + first_column(num_columns, g + 1, num_groups)});
    }
  }
}

}  // namespace

std::int64_t packed_gemm_bytes(std::int64_t rows, std::int64_t element_bytes) {
  if (!has_avx512()) return 0;
  return kMostPanels * kPanel * (kMostSlab * element_bytes + std::min(rows, kMostRows) * std::int64_t{sizeof(float)});
}

template <class X, class W, class Y>
void packed_gemm_cpu(const PackedGemm<X, W, Y>& p) {
  const std::int64_t num_blocks = ceil_div(p.M, kBlockRows);
  const std::int64_t most = std::max<std::int64_t>(1, 2 * p.M * p.N * p.K / kLeastWork);
  const std::int64_t num_tasks = std::min<std::int64_t>(num_threads(), most);
  // Split columns first: then no panel is packed twice.
  const std::int64_t num_columns = std::clamp<std::int64_t>(p.N / kPanel, 1, num_tasks);
  const std::int64_t num_rows = std::clamp<std::int64_t>(num_tasks / num_columns, 1, num_blocks);
  parallel_ranges(num_columns * num_rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t c = i / num_rows, r = i % num_rows;
      run_task(p, {num_blocks * r / num_rows * kBlockRows, std::min(p.M, num_blocks * (r + 1) / num_rows * kBlockRows),
                   first_column(p.N, c, num_columns), first_column(p.N, c + 1, num_columns)});
    }
    end_brgemm();
  });
}
#else
std::int64_t packed_gemm_bytes(std::int64_t, std::int64_t) { return 0; }

template <class X, class W, class Y>
void packed_gemm_cpu(const PackedGemm<X, W, Y>&) {}
#endif

template void packed_gemm_cpu(const PackedGemm<float, float, float>&);
template void packed_gemm_cpu(const PackedGemm<float, Bf16, float>&);
template void packed_gemm_cpu(const PackedGemm<Bf16, Bf16, Bf16>&);
template void packed_gemm_cpu(const PackedGemm<Bf16, Bf16, float>&);

}  // namespace lora_train::kernels
