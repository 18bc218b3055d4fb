// Device code of lora_cuda.cu: the layout of the partial sums that its first launch writes, and the second launch,
// which reduces them; the first launch on tensor cores.
#pragma once

#include "launch/launch.h"
#include "lora_parts.h"

namespace lora_train::kernels {
namespace {

/// Several items in one launch: an item owns the blocks from its first_block on.
template <class Item>
struct Items {
  Item list[kMaxLoraTargets];
  int count;
};

template <class Item>
__device__ __forceinline__ Item item_of(const Items<Item>& items, std::int64_t block) {
  int i = 0;
  while (i + 1 < items.count && block >= items.list[i + 1].first_block) ++i;
  return items.list[i];
}

/// At most kLoraRanks ranks of a slice. Its columns start at partial_column in the partial sums; the partial sums of
/// its dS start at ds_offset in theirs.
struct PartialSlice {
  std::int64_t first_block;
  LoraSlice slice;
  std::int64_t partial_column, ds_offset;
};

/// Appends an item of `blocks` blocks to a launch of num_blocks, and returns the new number of blocks.
template <class Item>
std::int64_t append(Items<Item>& items, Item item, std::int64_t num_blocks, std::int64_t blocks) {
  item.first_block = num_blocks;
  items.list[items.count++] = item;
  return num_blocks + blocks;
}

constexpr unsigned kChunkLanes = 8, kSumThreads = kWarpSize * kChunkLanes;

/// grad(rank, column) += scale * sum of the partials of rows [row, row + ranks) and columns [column, column + width).
struct PartialSum {
  std::int64_t first_block, row, ranks, column, width;
  float* grad;
  std::int64_t rank_stride, column_stride;
  float scale;
};

/// All threads of a block of kSumThreads call it.
__device__ __forceinline__ void add_partials(const float* partials, const LoraChunks& chunks, std::int64_t rows,
                                             const PartialSum& item, std::int64_t block, std::int64_t r, float* sums) {
  if (r >= item.ranks) return;
  const unsigned lane = threadIdx.x / kWarpSize;
  const std::int64_t c = block * kWarpSize + threadIdx.x % kWarpSize;
  float sum = 0;
  LORA_TRAIN_UNROLL
  for (std::int64_t chunk = lane; c < item.width && chunk < chunks.num_chunks; chunk += kChunkLanes) {
    sum += partials[(chunk * rows + item.row + r) * chunks.padded_columns + item.column + c];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || c >= item.width) return;
  for (unsigned other = 1; other < kChunkLanes; ++other) sum += sums[other * kWarpSize + threadIdx.x];
  item.grad[r * item.rank_stride + c * item.column_stride] += item.scale * sum;
}

/// Columns [column, column + ranks) of dS: the sum of num_blocks partial sums [num_tokens, ranks], which begin at
/// ds_offset.
struct DsSum {
  std::int64_t column, ranks, num_blocks, ds_offset;
};

/// dS [num_tokens, num_columns], with zeros in columns without an adapter. Computed by the blocks after num_sum_blocks.
struct DsSums {
  Rows<Bf16> ds;
  std::int64_t num_tokens, num_columns, num_sum_blocks;
  const float* partials;
  DsSum list[kMaxLoraTargets];
  int count;
};

__device__ __forceinline__ void write_ds(const DsSums& to, std::int64_t i) {
  if (i >= to.num_tokens * to.num_columns) return;
  const std::int64_t token = i / to.num_columns, c = i % to.num_columns;
  float sum = 0;
  for (int k = 0; k < to.count; ++k) {
    const DsSum& part = to.list[k];
    if (c < part.column || c >= part.column + part.ranks) continue;
    const float* const from = to.partials + part.ds_offset + token * part.ranks + (c - part.column);
    for (std::int64_t block = 0; block < part.num_blocks; ++block) sum += from[block * to.num_tokens * part.ranks];
  }
  store(to.ds[token] + c, sum);
}

/// Blocks: columns in x, ranks in y.
__global__ void __launch_bounds__(kSumThreads)
    add_partials_kernel(const float* partials, LoraChunks chunks, std::int64_t rows, Items<PartialSum> items) {
  LORA_TRAIN_SHARED(float, sums, kSumThreads);
  const PartialSum item = item_of(items, blockIdx.x);
  add_partials(partials, chunks, rows, item, blockIdx.x - item.first_block, blockIdx.y, sums);
}

/// The same, and dS.
__global__ void __launch_bounds__(kSumThreads)
    add_partials_and_write_ds_kernel(const float* partials, LoraChunks chunks, std::int64_t rows,
                                     Items<PartialSum> items, DsSums to) {
  LORA_TRAIN_SHARED(float, sums, kSumThreads);
  if (blockIdx.x >= to.num_sum_blocks) {
    const std::int64_t block = (blockIdx.x - to.num_sum_blocks) * gridDim.y + blockIdx.y;
    return write_ds(to, block * kSumThreads + threadIdx.x);
  }
  const PartialSum item = item_of(items, blockIdx.x);
  add_partials(partials, chunks, rows, item, blockIdx.x - item.first_block, blockIdx.y, sums);
}

// On tensor cores, in bf16: thin^T big, and optionally dS = big sB from the same read. N tokens, C columns of big, R
// ranks.
//
// A warp owns 64 columns of big and walks over the tokens of its chunk, 16 at a time, loading big straight into
// registers: two strips of 16 tokens, each loaded again as soon as it is used, so that up to 4 KiB per warp are in
// flight. Lane l, with g = l / 4 and q = l % 4, loads columns [8g, 8g + 8) of tokens {2q, 2q + 1, 2q + 8, 2q + 9}, 4
// packs of 16 bytes. Its element j of those tokens is column g of operand b [16 tokens, 8 columns] of the j-th product,
// whose columns are thus 8g + j; operand a is thin^T [16 ranks, 16 tokens]. So for each 16 ranks, 2 KiB of big take 8
// products, 16 byte permutations and 4 loads from shared memory.
//
// For dS^T = sB^T big^T the same registers transposed (8 tokens x 8 columns at a time) are operand b [16 columns, 8
// tokens]: lane (g, q) gets columns 16q + j and 16q + 8 + j of token g. sB^T of the warp's columns stays in registers
// for the whole walk. The warps of a block sum their dS in shared memory, in a fixed order. The second launch adds the
// dS of the other column blocks, and the dB of the other chunks.

constexpr int kStepTokens = 16, kGroupTokens = 32;  // per product; per stage of thin rows in shared memory

template <int kTiles, bool kWithDs>
constexpr unsigned kMostThreads = static_cast<unsigned>(most_warps(kTiles, kWithDs)) * kWarpSize;
/// Threads that copy thin rows.
template <bool kWithDs>
constexpr unsigned kThinThreads = kWithDs ? 256 : 128;

/// Words between pairs of tokens in shared memory, padded so that the lanes of a warp read 32 different banks.
template <int kTiles>
constexpr int kPairStride = kTiles* kTileRanks + 8;
/// Floats between tokens in the sums of dS, padded so that the lanes of a warp write different banks.
template <int kTiles>
constexpr int kDsStride = kTiles* kTileRanks + 4;

/// g and q, as in the comment above.
struct Lane {
  unsigned g, q;
};

__device__ __forceinline__ std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) {
  return __byte_perm(low, high, 0x5410);  // the low halves of both
}

/// A lane's share of 16 tokens: words[k] holds its columns of the k-th of its tokens.
struct Strip {
  std::uint32_t words[4][4];
};

/// The position of a lane's next strip.
struct Walk {
  const Bf16* from;  ///< its first token
  std::int64_t stride;
  int left;  ///< remaining rows; 0 if the lane's columns are past the last one

  __device__ __forceinline__ Walk(Rows<const Bf16> big, int num_rows, std::int64_t c, std::int64_t C, const Lane& lane)
      : from(big[2 * lane.q] + c), stride(big.stride), left(c < C ? num_rows - 2 * static_cast<int>(lane.q) : 0) {}

  /// Zeros past the last token and column.
  __device__ __forceinline__ void load(Strip& strip) {
    LORA_TRAIN_UNROLL
    for (int k = 0; k < 4; ++k) {
      constexpr int kTokens[] = {0, 1, 8, 9};
      memset(strip.words[k], 0, sizeof strip.words[k]);
      if (kTokens[k] < left) memcpy(strip.words[k], __builtin_assume_aligned(from + kTokens[k] * stride, 16), 16);
    }
    from += kStepTokens * stride;
    left -= kStepTokens;
  }
};

/// Registers 0 and 1 of operand b of product j.
template <int kRegister>
__device__ __forceinline__ std::uint32_t operand_of(const Strip& strip, int j) {
  const std::uint32_t first = strip.words[2 * kRegister][j / 2], second = strip.words[2 * kRegister + 1][j / 2];
  return __byte_perm(first, second, j % 2 == 0 ? 0x5410 : 0x7632);
}

/// Copies thin rows to shared memory, a group ahead: a thread copies rank threadIdx.x % 16 of every tile, for every
/// kPairs-th pair of rows. Threads past kThreads copy nothing.
template <int kTiles, unsigned kThreads>
struct ThinWalk {
  static constexpr int kPairs = static_cast<int>(kThreads) / kTileRanks, kTurns = kGroupTokens / 2 / kPairs;
  const Bf16* from;  ///< its first row
  std::int64_t stride;
  int left, ranks;                          ///< remaining rows, 0 if there is no such rank; remaining ranks
  std::uint16_t values[kTurns][kTiles][2];  ///< values from load(): both rows of each pair

  __device__ __forceinline__ ThinWalk(Rows<const Bf16> thin, int num_rows, int R)
      : from(thin[2 * (threadIdx.x / kTileRanks)] + threadIdx.x % kTileRanks),
        stride(thin.stride),
        left(threadIdx.x < kThreads && threadIdx.x % kTileRanks < static_cast<unsigned>(R)
                 ? num_rows - 2 * static_cast<int>(threadIdx.x / kTileRanks)
                 : 0),
        ranks(R - static_cast<int>(threadIdx.x % kTileRanks)) {}

  /// The next kGroupTokens rows, zeros past the last row and rank.
  __device__ __forceinline__ void load() {
    LORA_TRAIN_UNROLL
    for (int n = 0; n < kTurns * kTiles * 2; ++n) {
      const int k = n / 2 / kTiles, tile = n / 2 % kTiles, i = n % 2, row = 2 * k * kPairs + i, r = tile * kTileRanks;
      values[k][tile][i] = 0;
      if (row < left && (tile == 0 || r < ranks)) values[k][tile][i] = from[row * stride + r].bits;
    }
    from += kGroupTokens * stride;
    left -= kGroupTokens;
  }

  /// Writes the values from load() to pairs[pair][rank].
  __device__ __forceinline__ void store(std::uint32_t* pairs) const {
    if (threadIdx.x >= kThreads) return;
    LORA_TRAIN_UNROLL
    for (int n = 0; n < kTurns * kTiles; ++n) {
      const int k = n / kTiles, tile = n % kTiles;
      const unsigned pair = threadIdx.x / kTileRanks + k * kPairs, r = threadIdx.x % kTileRanks + tile * kTileRanks;
      pairs[pair * kPairStride<kTiles> + r] = pair_of(values[k][tile][0], values[k][tile][1]);
    }
  }
};

/// sums[tile][j] += thin^T big over 16 tokens; `pairs` holds their thin rows.
template <int kTiles>
__device__ __forceinline__ void add_tokens(const Strip& strip, const std::uint32_t* pairs, const Lane& lane,
                                           float (&sums)[kTiles][8][4]) {
  LORA_TRAIN_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    std::uint32_t a[4];
    LORA_TRAIN_UNROLL
    for (int i = 0; i < 4; ++i) {
      a[i] = pairs[(lane.q + i / 2 * 4) * kPairStride<kTiles> + tile * kTileRanks + lane.g + i % 2 * 8];
    }
    LORA_TRAIN_UNROLL
    for (int j = 0; j < 8; ++j) {
      multiply_add_16x8x16(sums[tile][j], a, operand_of<0>(strip, j), operand_of<1>(strip, j));
    }
  }
}

/// Stores the warp's sums to `partials`, which points to the row of the first rank.
template <int kTiles>
__device__ __forceinline__ void store_sums(const float (&sums)[kTiles][8][4], const Lane& lane, std::int64_t C,
                                           std::int64_t first_column, std::int64_t R, std::int64_t stride,
                                           float* partials) {
  LORA_TRAIN_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::int64_t c = first_column + 16 * lane.q + i % 2 * 8;
    LORA_TRAIN_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::int64_t r = tile * kTileRanks + lane.g + i / 2 * 8;
      if (r >= R || c >= C) continue;
      float* const to = partials + r * stride + c;
      const auto& s = sums[tile];
      store_pack<4>(to, Pack<float, 4>{s[0][i], s[1][i], s[2][i], s[3][i]});
      store_pack<4>(to + 4, Pack<float, 4>{s[4][i], s[5][i], s[6][i], s[7][i]});
    }
  }
}

/// Operand a of dS^T += sB^T big^T: for every tile and every two j, the 16 columns {16q + j, 16q + 8 + j, 16q + j + 1,
/// 16q + 9 + j}.
template <int kTiles>
struct ScaledB {
  std::uint32_t a[kTiles][4][4];
};

/// Loads sB for the warp's columns, with zeros past the last column and rank.
template <int kTiles>
__device__ __forceinline__ void load_scaled_b(Rows<const Bf16> scaled_b, std::int64_t first_column, std::int64_t C,
                                              std::int64_t R, const Lane& lane, ScaledB<kTiles>& b) {
  const auto element = [&](std::int64_t c, std::int64_t r) -> std::uint32_t {
    return c < C && r < R ? scaled_b[c][r].bits : 0;
  };
  LORA_TRAIN_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    LORA_TRAIN_UNROLL
    for (int n = 0; n < 16; ++n) {
      const int i = n % 4;
      const std::int64_t r = tile * kTileRanks + lane.g + i % 2 * 8, c = first_column + 16 * lane.q + n / 4 * 2 + i / 2;
      b.a[tile][n / 4][i] = pair_of(element(c, r), element(c + 8, r));
    }
  }
}

/// Writes the warp's partial dS of 16 tokens to ds[token][rank] in shared memory.
template <int kTiles>
__device__ __forceinline__ void make_ds(const Strip& strip, const ScaledB<kTiles>& b, const Lane& lane, float* ds) {
  float sums[kTiles][2][4] = {};
  LORA_TRAIN_UNROLL
  for (int j = 0; j < 8; j += 2) {
    const std::uint32_t low0 = transpose_8x8(operand_of<0>(strip, j)),
                        low1 = transpose_8x8(operand_of<0>(strip, j + 1));
    const std::uint32_t high0 = transpose_8x8(operand_of<1>(strip, j)),
                        high1 = transpose_8x8(operand_of<1>(strip, j + 1));
    LORA_TRAIN_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      multiply_add_16x8x16(sums[tile][0], b.a[tile][j / 2], low0, low1);
      multiply_add_16x8x16(sums[tile][1], b.a[tile][j / 2], high0, high1);
    }
  }
  LORA_TRAIN_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    LORA_TRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      const unsigned token = i / 4 * 8 + 2 * lane.q + i % 2, r = tile * kTileRanks + lane.g + i % 4 / 2 * 8;
      ds[token * kDsStride<kTiles> + r] = sums[tile][i / 4][i % 4];
    }
  }
}

/// Sums dS over the warps, which are consecutive in `ds`, into rows of partials [num_rows, R], starting at `first`. All
/// threads call it.
template <int kTiles>
__device__ __forceinline__ void add_warps(const float* ds, int first, int num_rows, int R, float* partials) {
  constexpr int kRanks = kTiles * kTileRanks, kWarpFloats = kGroupTokens * kDsStride<kTiles>;
  const int num_warps = static_cast<int>(blockDim.x / kWarpSize);
  for (int i = static_cast<int>(threadIdx.x); i < kGroupTokens * kRanks; i += static_cast<int>(blockDim.x)) {
    const int t = i / kRanks, r = i % kRanks;
    if (first + t >= num_rows || r >= R) continue;
    float sum = 0;
    LORA_TRAIN_UNROLL
    for (int warp = 0; warp < num_warps; ++warp) sum += ds[warp * kWarpFloats + t * kDsStride<kTiles> + r];
    partials[std::int64_t{first + t} * R + r] = sum;
  }
}

/// The arguments of a tensor-core product. scaled_b and ds_partials are used only with dS.
struct TensorOperands {
  Rows<const Bf16> big, thin, scaled_b;
  std::int64_t num_tokens;
  float *partials, *ds_partials;
};

/// partials [chunks, rows, padded_columns]; a slice fills one row per rank. Blocks: columns in x, chunks in y.
template <int kTiles, bool kWithDs>
__global__ void __launch_bounds__(kMostThreads<kTiles, kWithDs>,
                                  static_cast<unsigned>(resident_blocks(kTiles, kWithDs)))
    tensor_products_kernel(TensorOperands o, Items<PartialSlice> items, LoraChunks chunks, std::int64_t rows) {
  constexpr int kPairs = kGroupTokens / 2 * kPairStride<kTiles>, kWarpDs = kGroupTokens * kDsStride<kTiles>;
  constexpr int kDs = kWithDs ? static_cast<int>(most_warps(kTiles, true)) * kWarpDs : 1;
  LORA_TRAIN_SHARED(std::uint32_t, pairs, 2 * kPairs);
  LORA_TRAIN_SHARED(float, ds, kDs);
  const PartialSlice item = item_of(items, blockIdx.x);
  const std::int64_t C = item.slice.width, block = blockIdx.x - item.first_block;
  const int R = static_cast<int>(item.slice.ranks);
  const unsigned warp = threadIdx.x / kWarpSize;
  const std::int64_t first_column = block * (blockDim.x / kWarpSize * kWarpColumns) + warp * kWarpColumns;
  const Lane lane{threadIdx.x % kWarpSize / 4, threadIdx.x % 4};
  const std::int64_t begin = std::int64_t{blockIdx.y} * chunks.chunk_tokens, left = o.num_tokens - begin;
  const int num_rows = static_cast<int>(left < chunks.chunk_tokens ? left : chunks.chunk_tokens);
  const Rows<const Bf16> big{o.big[begin] + item.slice.begin, o.big.stride};
  const Rows<const Bf16> thin{o.thin[begin] + item.slice.column, o.thin.stride};
  float sums[kTiles][8][4] = {};
  ScaledB<kTiles> scaled_b;
  if constexpr (kWithDs) {
    const Rows<const Bf16> own{o.scaled_b[item.slice.begin] + item.slice.column, o.scaled_b.stride};
    load_scaled_b(own, first_column, C, R, lane, scaled_b);
  }
  Walk walk(big, num_rows, first_column + 8 * lane.g, C, lane);
  Strip strips[kGroupTokens / kStepTokens];
  for (Strip& strip : strips) walk.load(strip);
  ThinWalk<kTiles, kThinThreads<kWithDs>> thin_walk(thin, num_rows, R);
  thin_walk.load();
  thin_walk.store(pairs);
  thin_walk.load();
  __syncthreads();
  const unsigned thread = thread_index_again();
  const Lane own{thread % kWarpSize / 4, thread % 4};
  int half = 0, row = 0;  // which half of `pairs` (double buffering)
  do {                    // there is at least one row
    LORA_TRAIN_UNROLL
    for (int t = 0; t < kGroupTokens; t += kStepTokens) {
      Strip& strip = strips[t / kStepTokens];
      if constexpr (kWithDs) make_ds(strip, scaled_b, own, ds + warp * kWarpDs + t * kDsStride<kTiles>);
      add_tokens<kTiles>(strip, pairs + half * kPairs + t / 2 * kPairStride<kTiles>, own, sums);
      walk.load(strip);
    }
    thin_walk.store(pairs + (1 - half) * kPairs);
    thin_walk.load();
    __syncthreads();
    if constexpr (kWithDs) {
      add_warps<kTiles>(ds, row, num_rows, R, o.ds_partials + item.ds_offset + (block * o.num_tokens + begin) * R);
      __syncthreads();
    }
    half = 1 - half;
    row += kGroupTokens;
  } while (row < num_rows);
  store_sums(sums, lane, C, first_column, item.slice.ranks, chunks.padded_columns,
             o.partials + std::int64_t{blockIdx.y} * rows * chunks.padded_columns + item.partial_column);
}

}  // namespace
}  // namespace lora_train::kernels
