// thin^T big, N tokens, C columns of big, R ranks, in two steps. First a block takes a chunk of tokens and 64 packs of
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

/// partials [chunks, R, padded_columns] of R <= kLoraRanks ranks. Blocks: columns in x, chunks in y.
template <class T, bool kIsPacked>
__global__ void __launch_bounds__(kMostThreads)
    partial_products_kernel(Rows<const T> big, Rows<const T> thin, std::int64_t N, std::int64_t C, std::int64_t R,
                            LoraChunks chunks, float* partials) {
  constexpr int kSize = kFullPack<T>, kCount = kStep<kIsPacked>;
  LORA_TRAIN_SHARED(float, factors, kTokens* kLoraRanks);
  const unsigned lane = threadIdx.x % kColumnLanes, first_rank = threadIdx.x / kColumnLanes * kRanks;
  const unsigned ranks = blockDim.x / kColumnLanes * kRanks;
  const std::int64_t c = (std::int64_t{blockIdx.x} * kColumnLanes + lane) * kSize;
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
  if (c >= chunks.padded_columns) return;
  LORA_TRAIN_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    if (first_rank + r >= R) continue;
    float* const to = partials + (blockIdx.y * R + first_rank + r) * chunks.padded_columns + c;
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; i += 4) {
      store_pack<4>(to + i, Pack<float, 4>{sums[r][i], sums[r][i + 1], sums[r][i + 2], sums[r][i + 3]});
    }
  }
}

constexpr unsigned kChunkLanes = 8;

/// grad(rank, column) += scale * sum of the partials. Blocks: columns in x, ranks in y.
__global__ void __launch_bounds__(kWarpSize* kChunkLanes)
    add_partials_kernel(const float* partials, LoraChunks chunks, std::int64_t C, std::int64_t R, float scale,
                        float* grad, std::int64_t rank_stride, std::int64_t column_stride) {
  LORA_TRAIN_SHARED(float, sums, kWarpSize* kChunkLanes);
  const unsigned lane = threadIdx.x / kWarpSize;
  const std::int64_t r = blockIdx.y, c = std::int64_t{blockIdx.x} * kWarpSize + threadIdx.x % kWarpSize;
  float sum = 0;
  LORA_TRAIN_UNROLL
  for (std::int64_t chunk = lane; c < C && chunk < chunks.num_chunks; chunk += kChunkLanes) {
    sum += partials[(chunk * R + r) * chunks.padded_columns + c];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || c >= C) return;
  for (unsigned other = 1; other < kChunkLanes; ++other) sum += sums[other * kWarpSize + threadIdx.x];
  grad[r * rank_stride + c * column_stride] += scale * sum;
}

/// grad(rank, column) += scale * thin^T big.
template <class T>
void add_product(const char* name, Rows<const T> big, Rows<const T> thin, float scale, float* grad,
                 std::int64_t rank_stride, std::int64_t column_stride, std::int64_t N, std::int64_t C, std::int64_t R,
                 float* workspace, Stream stream) {
  const LoraChunks chunks = lora_chunks(N, C, R);
  if (chunks.num_chunks == 0) return;
  const auto kernel = fits_packs(big, C) ? partial_products_kernel<T, true> : partial_products_kernel<T, false>;
  for (std::int64_t first = 0; first < R; first += kLoraRanks) {
    const std::int64_t ranks = std::min(kLoraRanks, R - first);
    launch(name, kernel, {blocks_for(C, kColumnLanes * kFullPack<T>), chunks.num_chunks},
           static_cast<unsigned>(blocks_for(ranks, kRanks)) * kColumnLanes, stream, big,
           Rows<const T>{thin.data + first, thin.stride}, N, C, ranks, chunks, workspace);
    launch(name, add_partials_kernel, {blocks_for(C, kWarpSize), ranks}, kWarpSize * kChunkLanes, stream, workspace,
           chunks, C, ranks, scale, grad + first * rank_stride, rank_stride, column_stride);
  }
}

}  // namespace

template <class T>
void lora_grad_b_cuda(Rows<const T> dy, Rows<const T> s, float scale, Rows<float> grad_b, std::int64_t N,
                      std::int64_t O, std::int64_t R, float* workspace, Stream stream) {
  add_product("lora_grad_b", dy, s, scale, grad_b.data, 1, grad_b.stride, N, O, R, workspace, stream);
}

template <class T>
void lora_grad_a_cuda(Rows<const T> ds, Rows<const T> x, Rows<float> grad_a, std::int64_t N, std::int64_t D,
                      std::int64_t R, float* workspace, Stream stream) {
  add_product("lora_grad_a", x, ds, 1.0F, grad_a.data, grad_a.stride, 1, N, D, R, workspace, stream);
}

#define LORA_TRAIN_INSTANTIATE(T)                                                                                     \
  template void lora_grad_b_cuda(Rows<const T>, Rows<const T>, float, Rows<float>, std::int64_t, std::int64_t,        \
                                 std::int64_t, float*, Stream);                                                       \
  template void lora_grad_a_cuda(Rows<const T>, Rows<const T>, Rows<float>, std::int64_t, std::int64_t, std::int64_t, \
                                 float*, Stream)
LORA_TRAIN_INSTANTIATE(float);
LORA_TRAIN_INSTANTIATE(Bf16);

}  // namespace lora_train::kernels
