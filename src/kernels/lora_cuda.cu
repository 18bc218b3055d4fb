// thin^T big, N tokens, C columns of big, R ranks, in two steps; of every slice of a LoraProduct in the same two launches. First a block takes a chunk of tokens and 64 packs of
// 16 bytes of every row of it: a thread has the sums of one pack and 8 ranks in registers, threads of other ranks read
// the same pack out of the first cache; the thin matrix lies in shared memory as fp32. Then the partial sums of the
// chunks are added, always in the same order.
// Memory traffic for each 64 ranks: big once, and 8 bytes (written and read) of every partial sum, [chunks, ranks, C]
// of them. Arithmetic: N C R multiplications and additions in fp32, which above R = 16 take longer than to read bf16.
#include "lora_cuda.h"

#include "launch.h"
#include "pack.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kColumnLanes = 64;
constexpr int kRanks = 8;    // of a thread
constexpr int kTokens = 64;  // whose thin rows are in shared memory together
/// Tokens that a thread reads before it needs the first of them.
template <bool kIsPacked>
constexpr int kStep = kIsPacked ? 4 : 1;
constexpr unsigned kMostThreads = kColumnLanes * kLoraRanks / kRanks;

/// Columns [c, c + kSize) of kStep<kIsPacked> tokens from `first`; zeros past the last token and column.
template <class T, bool kIsPacked>
__device__ __forceinline__ void load_step(Rows<const T> big, std::int64_t first, std::int64_t end, std::int64_t c,
                                          std::int64_t C, Pack<T, kFullPack<T>> (&packs)[kStep<kIsPacked>]) {
  constexpr int kSize = kFullPack<T>;
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kStep<kIsPacked>; ++k) {
    packs[k] = {};
    if (first + k >= end || c >= C) continue;
    if constexpr (kIsPacked) {
      packs[k] = load_pack<kSize>(big[first + k] + c);
    } else {
      for (int i = 0; i < kSize; ++i) {
        if (c + i < C) packs[k].values[i] = big[first + k][c + i];
      }
    }
  }
}

/// factors[token][rank] of tokens [first, first + kTokens), zeros past the last token and rank. All threads call it.
template <class T>
__device__ __forceinline__ void fill_factors(Rows<const T> thin, std::int64_t first, std::int64_t end, std::int64_t R,
                                             unsigned ranks, float* factors) {
  for (unsigned i = threadIdx.x; i < kTokens * ranks; i += blockDim.x) {
    const unsigned t = i / ranks, r = i % ranks;
    factors[t * kLoraRanks + r] = first + t < end && r < R ? to_float(thin[first + t][r]) : 0.0F;
  }
}

template <class T, int kCount>
__device__ __forceinline__ void add_step(const Pack<T, kFullPack<T>> (&packs)[kCount], const float* factors,
                                         float (&sums)[kRanks][kFullPack<T>]) {
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const auto low = load_pack<4>(factors + k * kLoraRanks), high = load_pack<4>(factors + k * kLoraRanks + 4);
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kFullPack<T>; ++i) {
      const float value = to_float(packs[k].values[i]);
      LORA_TRAIN_UNROLL
      for (int r = 0; r < 4; ++r) {
        sums[r][i] += low.values[r] * value;
        sums[r + 4][i] += high.values[r] * value;
      }
    }
  }
}

/// Several of something in one launch: an item has the blocks from its first_block on.
template <class Item>
struct Items {
  Item list[kMostLoraTargets];
  int count;
};

template <class Item>
__device__ __forceinline__ Item item_of(const Items<Item>& items, std::int64_t block) {
  int i = 0;
  while (i + 1 < items.count && block >= items.list[i + 1].first_block) ++i;
  return items.list[i];
}

/// At most kLoraRanks ranks of a slice; its columns begin at partial_column of the partial sums.
struct PartialSlice {
  std::int64_t first_block;
  LoraSlice slice;
  std::int64_t partial_column;
};

/// partials [chunks, rows, padded_columns], of a slice its ranks in the first rows. Blocks: columns in x, chunks in y.
template <class T, bool kIsPacked>
__global__ void __launch_bounds__(kMostThreads)
    partial_products_kernel(Rows<const T> whole, Rows<const T> whole_thin, std::int64_t N, Items<PartialSlice> items,
                            LoraChunks chunks, std::int64_t rows, float* partials) {
  constexpr int kSize = kFullPack<T>, kCount = kStep<kIsPacked>;
  const PartialSlice item = item_of(items, blockIdx.x);
  const Rows<const T> big{whole.data + item.slice.begin, whole.stride};
  const Rows<const T> thin{whole_thin.data + item.slice.column, whole_thin.stride};
  const std::int64_t C = item.slice.width, R = item.slice.ranks, block = blockIdx.x - item.first_block;
  LORA_TRAIN_SHARED(float, factors, kTokens* kLoraRanks);
  const unsigned lane = threadIdx.x % kColumnLanes, first_rank = threadIdx.x / kColumnLanes * kRanks;
  const unsigned ranks = blockDim.x / kColumnLanes * kRanks;
  const std::int64_t c = (block * kColumnLanes + lane) * kSize;
  const std::int64_t begin = std::int64_t{blockIdx.y} * chunks.chunk_tokens;
  const std::int64_t end = begin + chunks.chunk_tokens < N ? begin + chunks.chunk_tokens : N;
  float sums[kRanks][kSize] = {};
  Pack<T, kSize> packs[kCount], next[kCount];
  load_step<T, kIsPacked>(big, begin, end, c, C, next);
  for (std::int64_t tile = begin; tile < end; tile += kTokens) {
    __syncthreads();
    fill_factors(thin, tile, end, R, ranks, factors);
    __syncthreads();
    for (int t = 0; t < kTokens && tile + t < end; t += kCount) {
      LORA_TRAIN_UNROLL
      for (int k = 0; k < kCount; ++k) packs[k] = next[k];
      load_step<T, kIsPacked>(big, tile + t + kCount, end, c, C, next);
      add_step(packs, factors + t * kLoraRanks + first_rank, sums);
    }
  }
  if (c >= (C + 7) / 8 * 8) return;
  LORA_TRAIN_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    if (first_rank + r >= R) continue;
    const std::int64_t row = blockIdx.y * rows + first_rank + r;
    float* const to = partials + row * chunks.padded_columns + item.partial_column + c;
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; i += 4) {
      store_pack<4>(to + i, Pack<float, 4>{sums[r][i], sums[r][i + 1], sums[r][i + 2], sums[r][i + 3]});
    }
  }
}

constexpr unsigned kChunkLanes = 8;

/// grad(rank, column) += scale * sum of the partials of rows [row, row + ranks) and columns [column, column + width).
struct PartialSum {
  std::int64_t first_block, row, ranks, column, width;
  float* grad;
  std::int64_t rank_stride, column_stride;
  float scale;
};

/// Blocks: columns in x, ranks in y.
__global__ void __launch_bounds__(kWarpSize* kChunkLanes)
    add_partials_kernel(const float* partials, LoraChunks chunks, std::int64_t rows, Items<PartialSum> items) {
  LORA_TRAIN_SHARED(float, sums, kWarpSize* kChunkLanes);
  const PartialSum item = item_of(items, blockIdx.x);
  const std::int64_t r = blockIdx.y;
  if (r >= item.ranks) return;
  const unsigned lane = threadIdx.x / kWarpSize;
  const std::int64_t c = (blockIdx.x - item.first_block) * kWarpSize + threadIdx.x % kWarpSize;
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

/// A gradient: rows [row, row + ranks) of the product of a slice, at strides of ranks and columns.
struct Output {
  int slice;
  std::int64_t row, ranks;
  float* grad;
  std::int64_t rank_stride, column_stride;
  float scale;
};

/// Blocks of the launch.
template <class Item>
std::int64_t append(Items<Item>& items, Item item, std::int64_t num_blocks, std::int64_t blocks) {
  item.first_block = num_blocks;
  items.list[items.count++] = item;
  return num_blocks + blocks;
}

/// Ranks [first, first + kLoraRanks) of every slice, for the outputs that have some of them.
template <class T>
void add_ranks(const char* name, Rows<const T> big, Rows<const T> thin, const LoraProduct& product,
               const Items<Output>& outputs, std::int64_t first, float* workspace, Stream stream) {
  const LoraChunks chunks = product.chunks();
  Items<PartialSlice> slices{};
  std::int64_t columns[kMostLoraTargets] = {}, num_blocks = 0, column = 0;
  const std::int64_t rows = std::min(kLoraRanks, product.most_ranks() - first);
  bool is_packed = true;
  for (int i = 0; i < product.num_slices; ++i) {
    LoraSlice slice = product.slices[i];
    columns[i] = column;
    column += blocks_for(slice.width, 8) * 8;
    slice.column += first;
    slice.ranks = std::min(kLoraRanks, slice.ranks - first);
    if (slice.ranks <= 0 || slice.width == 0) continue;
    is_packed = is_packed && fits_packs(Rows<const T>{big.data + slice.begin, big.stride}, slice.width);
    num_blocks = append(slices, {0, slice, columns[i]}, num_blocks, blocks_for(slice.width, kColumnLanes * kFullPack<T>));
  }
  const auto kernel = is_packed ? partial_products_kernel<T, true> : partial_products_kernel<T, false>;
  launch(name, kernel, {num_blocks, chunks.num_chunks}, static_cast<unsigned>(blocks_for(rows, kRanks)) * kColumnLanes,
         stream, big, thin, product.num_tokens, slices, chunks, rows, workspace);

  Items<PartialSum> sums{};
  num_blocks = 0;
  for (int i = 0; i < outputs.count; ++i) {
    const Output& to = outputs.list[i];
    const std::int64_t begin = std::max(to.row, first), end = std::min(to.row + to.ranks, first + kLoraRanks);
    const std::int64_t width = product.slices[to.slice].width;
    if (begin >= end) continue;
    num_blocks = append(sums,
                        {0, begin - first, end - begin, columns[to.slice], width,
                         to.grad + (begin - to.row) * to.rank_stride, to.rank_stride, to.column_stride, to.scale},
                        num_blocks, blocks_for(width, kWarpSize));
  }
  launch(name, add_partials_kernel, {num_blocks, rows}, kWarpSize * kChunkLanes, stream, workspace, chunks, rows, sums);
}

template <class T>
void add_product(const char* name, Rows<const T> big, Rows<const T> thin, const LoraProduct& product,
                 const Items<Output>& outputs, float* workspace, Stream stream) {
  if (product.num_tokens == 0) return;
  for (std::int64_t first = 0; first < product.most_ranks(); first += kLoraRanks) {
    add_ranks(name, big, thin, product, outputs, first, workspace, stream);
  }
}

}  // namespace

template <class T>
void lora_grad_b_cuda(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, std::int64_t N, float* workspace,
                      Stream stream) {
  Items<Output> outputs{};
  for (const LoraTarget& t : targets) {
    outputs.list[outputs.count] = {outputs.count, 0, t.rank, t.grad.data, 1, t.grad.stride, t.scale};
    ++outputs.count;
  }
  add_product("lora_grad_b", dy, s, lora_product_b(targets, N), outputs, workspace, stream);
}

template <class T>
void lora_grad_a_cuda(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, std::int64_t N, std::int64_t D,
                      float* workspace, Stream stream) {
  Items<Output> outputs{};
  for (const LoraTarget& t : targets) {
    outputs.list[outputs.count++] = {0, t.column, t.rank, t.grad.data, t.grad.stride, 1, t.scale};
  }
  add_product("lora_grad_a", x, ds, lora_product_a(targets, N, D), outputs, workspace, stream);
}

#define LORA_TRAIN_INSTANTIATE(T)                                                                                       \
  template void lora_grad_b_cuda(Rows<const T>, Rows<const T>, const LoraTargets&, std::int64_t, float*, Stream);       \
  template void lora_grad_a_cuda(Rows<const T>, Rows<const T>, const LoraTargets&, std::int64_t, std::int64_t, float*, \
                                 Stream)
LORA_TRAIN_INSTANTIATE(float);
LORA_TRAIN_INSTANTIATE(Bf16);

}  // namespace lora_train::kernels
