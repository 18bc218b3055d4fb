// Device code of the gated delta rule: matrices of a chunk and their products, on tensor cores for bf16 (sums in fp32),
// in plain fp32 for float. A bf16 matrix is copied to shared memory; a float one, twice as large, is read where it is.
#pragma once

#include <type_traits>

#include "gated_delta_parts.h"
#include "launch/launch.h"

namespace lora_train::kernels {

constexpr int kChunk = static_cast<int>(kChunkTokens), kSquare = kChunk * kChunk;
constexpr int kChunkWarps = 8, kChunkThreads = 32 * kChunkWarps;  // of a block that computes one chunk

template <class T>
constexpr bool kOnTensorCores = std::is_same_v<T, Bf16>;

/// Sums of log decays and of their gradients: they grow large, their differences do not. fp32 loses less of these than
/// bf16 can show.
template <class T>
using LogDecay = std::conditional_t<kOnTensorCores<T>, float, double>;

__device__ __forceinline__ float decay_of(float log_decay) { return __expf(log_decay); }
__device__ __forceinline__ float decay_of(double log_decay) { return expf(static_cast<float>(log_decay)); }

/// Elements of shared memory for a copy of a matrix.
template <class T>
constexpr int copy_elements(int count) {
  return kOnTensorCores<T> ? count : 8;
}

/// A matrix in shared memory, at least 32 columns. Swizzled: eight rows of 16 bytes at one column lie in different
/// banks, and elements in groups of 4 (float) or 8 (bf16) stay together.
template <class T, int kColumns>
struct SharedMatrix {
  using Element = T;
  T* data;
  __device__ __forceinline__ T* address(int r, int c) const {
    if constexpr (sizeof(T) == 4) {
      return data + r * kColumns + (c ^ (r % 8 * 4));
    } else {
      const int turn = kColumns >= 64 ? r % 8 : r / 2 % 4;
      return data + r * kColumns + (c ^ (turn * 8));
    }
  }
  __device__ __forceinline__ float at(int r, int c) const { return load(address(r, c)); }
};

/// A matrix in global memory: zeros past its last row and column.
template <class T>
struct GlobalMatrix {
  using Element = T;
  const T* data;
  std::int64_t stride;
  int rows, columns;
  bool has_packs = true;  ///< rows can be read in packs of 16 bytes
  __device__ __forceinline__ float at(int r, int c) const {
    return r < rows && c < columns ? load(data + r * stride + c) : 0.0F;
  }
  /// kSize elements from column c on, a multiple of kSize.
  template <int kSize>
  __device__ __forceinline__ Pack<T, kSize> pack(int r, int c) const {
    Pack<T, kSize> pack = {};
    if (r >= rows || c >= columns) return pack;
    const T* const from = data + r * stride + c;
    if (has_packs) return load_pack<kSize>(from);
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; ++i) {
      if (c + i < columns) pack.values[i] = from[i];
    }
    return pack;
  }
  __device__ __forceinline__ GlobalMatrix from_column(int c) const {
    return {data + c, stride, rows, columns - c, has_packs};
  }
  __device__ __forceinline__ GlobalMatrix from_row(int r) const {
    return {data + r * stride, stride, rows - r, columns, has_packs};
  }
};

/// A matrix [kRows, kColumns] on its way from global memory to products: load(), then place() after a while.
template <class T, int kRows, int kColumns, int kThreads>
class Staged {
 public:
  using Matrix = std::conditional_t<kOnTensorCores<T>, SharedMatrix<T, kColumns>, GlobalMatrix<T>>;

  __device__ __forceinline__ void load(const GlobalMatrix<T>& from) {
    if constexpr (kOnTensorCores<T>) {
      const int thread = static_cast<int>(thread_index_again());  // as in Fragment::Place
      LORA_TRAIN_UNROLL
      for (int i = 0; i < kPacks; ++i) {
        const int pack = i * kThreads + thread;
        if (has_pack(pack)) packs_[i] = from.template pack<8>(pack / kRowPacks, pack % kRowPacks * 8);
      }
    } else {
      from_ = from;
    }
  }
  /// `memory` has copy_elements(kRows * kColumns). Threads may use the matrix after the next barrier.
  __device__ __forceinline__ Matrix place(T* memory) const {
    if constexpr (kOnTensorCores<T>) {
      const Matrix to{memory};
      const int thread = static_cast<int>(thread_index_again());
      LORA_TRAIN_UNROLL
      for (int i = 0; i < kPacks; ++i) {
        const int pack = i * kThreads + thread;
        if (!has_pack(pack)) continue;
        *reinterpret_cast<Pack<T, 8>*>(to.address(pack / kRowPacks, pack % kRowPacks * 8)) = packs_[i];
      }
      return to;
    } else {
      return from_;
    }
  }

 private:
  static constexpr int kRowPacks = kColumns / 8, kAll = kRows * kRowPacks;
  static constexpr int kPacks = kOnTensorCores<T> ? (kAll + kThreads - 1) / kThreads : 1;
  __device__ static bool has_pack(int pack) { return kAll % kThreads == 0 || pack < kAll; }

  std::conditional_t<kOnTensorCores<T>, Pack<T, 8>, float> packs_[kPacks];
  std::conditional_t<kOnTensorCores<T>, float, GlobalMatrix<T>> from_;
};

/// Both at once, for kChunkThreads.
template <int kRows, int kColumns, class T>
__device__ __forceinline__ auto stage(const GlobalMatrix<T>& from, T* memory) {
  Staged<T, kRows, kColumns, kChunkThreads> staged;
  staged.load(from);
  return staged.place(memory);
}

/// A matrix [kRows, kColumns] in the registers of kWarps warps, in fp32. A warp has 16 rows; a lane of it, with g = l /
/// 4 and q = l % 4, columns 8t + 2q and 8t + 2q + 1 of rows g and g + 8.
template <int kRows, int kColumns, int kWarps = kChunkWarps>
struct Fragment {
  static constexpr int kGroups = kRows / 16, kTiles = kGroups * (kColumns / 8) / kWarps;
  static_assert(kTiles * kWarps == kGroups * (kColumns / 8) && kTiles % 2 == 0);
  float values[kTiles][4] = {};

  /// Of a warp its first row, its part of the columns and the first of them; of a lane also those of its first element.
  struct Place {
    int lane, row, part, column, own_row, own_column;
    /// Read again by each method: kept in registers, what derives from it would leave too few.
    __device__ __forceinline__ Place() {
      const int thread = static_cast<int>(thread_index_again()), warp = thread / 32;
      lane = thread % 32;
      row = warp % kGroups * 16;
      part = warp / kGroups;
      column = part * kTiles * 8;
      own_row = row + lane / 4;
      own_column = column + lane % 4 * 2;
    }
  };
  __device__ static int row() { return Place().row; }

  /// run(r, c, element at (r, c), element at (r, c + 1)) for each pair of columns of the lane.
  template <class Run>
  __device__ __forceinline__ void each(const Run& run) {
    const Place place;
    LORA_TRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      LORA_TRAIN_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        run(place.own_row + 8 * half, place.own_column + 8 * t, values[t][2 * half], values[t][2 * half + 1]);
      }
    }
  }

  /// += a b, or their transposes, over rows [begin, end) of b (multiples of 16), and as many columns of a, from
  /// a_first + begin on.
  template <bool kTransposedA, bool kTransposedB, class A, class B>
  __device__ __forceinline__ void add_product(const A& a, const B& b, int begin, int end, int a_first = 0) {
    const Place place;
    if constexpr (kOnTensorCores<typename A::Element>) {
      const int r = place.lane % 8, low = place.lane / 8 % 2 * 8, high = place.lane / 16 * 8;
      const auto step = [&](int k) {
        std::uint32_t of_a[4];
        load_four_8x8<kTransposedA>(of_a, kTransposedA ? a.address(a_first + k + high + r, place.row + low)
                                                       : a.address(place.row + low + r, a_first + k + high));
        LORA_TRAIN_UNROLL
        for (int t = 0; t < kTiles; t += 2) {
          const int c = place.column + 8 * t;
          std::uint32_t of_b[4];
          load_four_8x8<!kTransposedB>(
              of_b, kTransposedB ? b.address(c + high + r, k + low) : b.address(k + low + r, c + high));
          multiply_add_16x8x16(values[t], of_a, of_b[0], of_b[1]);
          multiply_add_16x8x16(values[t + 1], of_a, of_b[2], of_b[3]);
        }
      };
      if constexpr (kColumns <= 32) {
        LORA_TRAIN_UNROLL
        for (int k = begin; k < end; k += 16) step(k);
      } else {  // enough to do at once, and few registers to spare
        LORA_TRAIN_NO_UNROLL
        for (int k = begin; k < end; k += 16) step(k);
      }
    } else {
      const int r = place.own_row, first = place.own_column;
      LORA_TRAIN_NO_UNROLL
      for (int k = begin; k < end; ++k) {
        const float a0 = kTransposedA ? a.at(a_first + k, r) : a.at(r, a_first + k);
        const float a1 = kTransposedA ? a.at(a_first + k, r + 8) : a.at(r + 8, a_first + k);
        LORA_TRAIN_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          const int c = first + 8 * t;
          const float b0 = kTransposedB ? b.at(c, k) : b.at(k, c), b1 = kTransposedB ? b.at(c + 1, k) : b.at(k, c + 1);
          values[t][0] += a0 * b0;
          values[t][1] += a0 * b1;
          values[t][2] += a1 * b0;
          values[t][3] += a1 * b1;
        }
      }
    }
  }

  /// Row r times factors(r).
  template <class Factors>
  __device__ __forceinline__ void scale_rows(const Factors& factors) {
    const Place place;
    LORA_TRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float factor = factors(place.own_row + 8 * half);
      LORA_TRAIN_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        values[t][2 * half] *= factor;
        values[t][2 * half + 1] *= factor;
      }
    }
  }

  __device__ __forceinline__ void times(const Fragment& other) {
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kTiles * 4; ++i) values[i / 4][i % 4] *= other.values[i / 4][i % 4];
  }
  __device__ __forceinline__ void add(const Fragment& other) {
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kTiles * 4; ++i) values[i / 4][i % 4] += other.values[i / 4][i % 4];
  }

  /// Element (r, c) times e^(log_decays[r] - log_decays[c]); 0 above the diagonal, and with is_strict on it.
  template <class Log>
  __device__ __forceinline__ void decay(const Log* log_decays, bool is_strict) {
    each([&](int r, int c, float& x, float& y) {
      x = r > c || (r == c && !is_strict) ? x * decay_of(log_decays[r] - log_decays[c]) : 0.0F;
      y = r > c + 1 || (r == c + 1 && !is_strict) ? y * decay_of(log_decays[r] - log_decays[c + 1]) : 0.0F;
    });
  }

  /// sums[kRows part + r] += the sum over the warp's columns of terms(r, c, element at (r, c), element at (r, c + 1)).
  template <class Sum, class Terms>
  __device__ __forceinline__ void add_row_sums(Sum* sums, const Terms& terms) {
    const Place place;
    LORA_TRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = place.own_row + 8 * half;
      Sum sum = 0;
      LORA_TRAIN_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        sum += terms(r, place.own_column + 8 * t, values[t][2 * half], values[t][2 * half + 1]);
      }
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      if (place.lane % 4 == 0) sums[place.part * kRows + r] += sum;
    }
  }

  /// sums[kColumns (group of 16 rows) + c] -= the sum over the warp's rows of factors(r) times element (r, c).
  template <class Sum, class Factors>
  __device__ __forceinline__ void subtract_column_sums(Sum* sums, const Factors& factors) const {
    const Place place;
    const Sum low = factors(place.own_row), high = factors(place.own_row + 8);
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kTiles * 2; ++i) {
      const int t = i / 2, j = i % 2;
      Sum sum = low * values[t][j] + high * values[t][2 + j];
      for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
      if (place.lane < 4) sums[place.row / 16 * kColumns + place.own_column + 8 * t + j] -= sum;
    }
  }

  template <class T>
  __device__ __forceinline__ void read(const SharedMatrix<T, kColumns>& from) {
    each([&](int r, int c, float& x, float& y) {
      x = from.at(r, c);
      y = from.at(r, c + 1);
    });
  }
  template <class T>
  __device__ __forceinline__ void read(const GlobalMatrix<T>& from) {
    each([&](int r, int c, float& x, float& y) {
      const Pack<T, 2> pack = from.template pack<2>(r, c);
      x = to_float(pack.values[0]);
      y = to_float(pack.values[1]);
    });
  }
  /// Rounds to T.
  template <class T>
  __device__ __forceinline__ void write(const SharedMatrix<T, kColumns>& to) {
    each([&](int r, int c, float x, float y) {
      const float pair[] = {x, y};
      store_floats<2>(to.address(r, c), pair);
    });
  }
  /// The first `rows` rows, to rows of an even number of elements.
  template <class T>
  __device__ __forceinline__ void write(T* to, std::int64_t stride, int rows) {
    each([&](int r, int c, float x, float y) {
      const float pair[] = {x, y};
      if (r < rows) store_floats<2>(to + r * stride + c, pair);
    });
  }
};

/// The element at (r, c) of `from` times x, plus that at (r, c + 1) times y. c is even.
template <class T>
__device__ __forceinline__ float pair_product(const GlobalMatrix<T>& from, int r, int c, float x, float y) {
  const Pack<T, 2> pack = from.template pack<2>(r, c);
  return to_float(pack.values[0]) * x + to_float(pack.values[1]) * y;
}

/// Elements c and c + 1 of a row of `width`. c is even.
template <class T>
__device__ __forceinline__ void store_pair(T* row, int c, int width, bool has_packs, float x, float y) {
  const float pair[] = {x, y};
  if (c >= width) return;
  if (has_packs) return store_floats<2>(row + c, pair);
  store(row + c, x);
  if (c + 1 < width) store(row + c + 1, y);
}

/// (I + a)^-1 in place, for a strictly lower triangular a: blocks of 16 on the diagonal by forward substitution, then
/// the rows of blocks from the second on. All kChunkThreads call it; it ends with a barrier.
__device__ __forceinline__ void invert(const SharedMatrix<float, kChunk>& a) {
  constexpr int kBlock = 16;
  const int thread = static_cast<int>(threadIdx.x), r = thread / kBlock, c = thread % kBlock;
  float x[kBlock] = {};
  if (thread < kChunk) {
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      x[i] = i == c ? 1.0F : 0.0F;
      LORA_TRAIN_UNROLL
      for (int k = 0; k < i; ++k) x[i] -= a.at(r * kBlock + i, r * kBlock + k) * x[k];
    }
  }
  __syncthreads();
  LORA_TRAIN_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    if (thread < kChunk) *a.address(r * kBlock + i, r * kBlock + c) = x[i];
  }
  __syncthreads();
  for (int first = kBlock; first < kChunk; first += kBlock) {
    for (int product = 0; product < 2; ++product) {  // rows of a times the inverse so far; that, by the diagonal
      const bool is_last_product = product == 1;
      float y[kChunk / kBlock - 1] = {};
      LORA_TRAIN_UNROLL
      for (int m = 0; m < kChunk / kBlock - 1; ++m) {
        const int column = m * kBlock;
        if (column >= first) continue;
        const int begin = is_last_product ? first : column, end = is_last_product ? first + kBlock : first;
        for (int k = begin; k < end; ++k) y[m] += a.at(first + r, k) * a.at(k, column + c);
      }
      __syncthreads();
      LORA_TRAIN_UNROLL
      for (int m = 0; m < kChunk / kBlock - 1; ++m) {
        if (m * kBlock < first) *a.address(first + r, m * kBlock + c) = is_last_product ? -y[m] : y[m];
      }
      __syncthreads();
    }
  }
}

}  // namespace lora_train::kernels
