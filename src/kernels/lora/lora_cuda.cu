// thin^T big, N tokens, C columns of big, R ranks, in two steps; of every slice of a LoraProduct in the same two
// launches. First, a block sums some columns over a chunk of tokens and leaves the sums in the workspace; then the
// partial sums of the chunks are added, always in the same order.
//
// On fp32 cores a block takes 64 packs of 16 bytes of a row: a thread has the sums of one pack and 8 ranks in
// registers, threads of other ranks read the same pack from L1; the thin matrix is in shared memory as fp32. That is N
// C R multiplications and additions, which above R = 16 take longer than reading bf16; so bf16 with rows that allow
// packs uses tensor cores (lora_device.h), where dS = dy sB can come from the same read.
//
// Memory traffic for each 64 ranks: big once, and 8 bytes (written and read) per partial sum, of which there are
// [chunks, ranks, C] and, with dS, [column blocks, N, R] more. At C = 3584, N = 16384, R = 16 these are 11% of the
// bytes of big on tensor cores, and 27% with dS; for gate|up of Qwen2.5-7B (C = 2 x 18944), whose blocks are wide, 7.6%
// with dS (5.8 of 75.8 KB per token). If the partial sums of dS do not fit the workspace, the tokens are taken in
// pieces.
#include "launch/elements.h"
#include "lora_device.h"
#include "lora_parts.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kColumnLanes = 64;
constexpr int kRanks = 8;    // per thread
constexpr int kTokens = 64;  // with thin rows in shared memory at once
/// Tokens that a thread reads before it needs the first of them.
template <bool kIsPacked>
constexpr int kStep = kIsPacked ? 4 : 1;
constexpr unsigned kMaxThreads = kColumnLanes * kLoraRanks / kRanks;

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
      const std::int64_t left = C - c;
      for (int i = 0; i < kSize; ++i) {
        if (i < left) packs[k].values[i] = big[first + k][c + i];
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

/// partials [chunks, rows, padded_columns]; a slice's ranks are in the first rows. Blocks: columns in x, chunks in y.
template <class T, bool kIsPacked>
__global__ void __launch_bounds__(kMaxThreads)
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
  std::int64_t tile = begin;
  do {
    __syncthreads();
    fill_factors(thin, tile, end, R, ranks, factors);
    __syncthreads();
    for (int t = 0; t < kTokens && tile + t < end; t += kCount) {
      LORA_TRAIN_UNROLL
      for (int k = 0; k < kCount; ++k) packs[k] = next[k];
      load_step<T, kIsPacked>(big, tile + t + kCount, end, c, C, next);
      add_step(packs, factors + t * kLoraRanks + first_rank, sums);
    }
    tile += kTokens;
  } while (tile < end);
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

using TensorKernel = void (*)(TensorOperands, Items<PartialSlice>, LoraChunks, std::int64_t);

/// The kernel for this number of ranks.
TensorKernel tensor_kernel(std::int64_t rows, bool with_ds) {
  constexpr TensorKernel kWithDs[] = {tensor_products_kernel<1, true>, tensor_products_kernel<2, true>};
  constexpr TensorKernel kAlone[] = {tensor_products_kernel<1, false>, tensor_products_kernel<2, false>,
                                     tensor_products_kernel<3, false>, tensor_products_kernel<4, false>};
  const std::int64_t tile = (rows - 1) / kTileRanks;
  return with_ds ? kWithDs[tile] : kAlone[tile];
}

/// Threads per block on tensor cores.
unsigned threads_of(const LoraProduct& product) { return static_cast<unsigned>(product.num_warps()) * kWarpSize; }

/// A gradient: rows [row, row + ranks) of the product of a slice, at strides of ranks and columns.
struct Output {
  int slice;
  std::int64_t row, ranks;
  float* grad;
  std::int64_t rank_stride, column_stride;
  float scale;
};

/// Ranks [first, first + rows) of every slice: one pass over big.
struct Pass {
  std::int64_t first, rows;
  Items<PartialSlice> slices;
  std::int64_t num_blocks;
  std::int64_t columns[kMaxLoraTargets];  ///< start of each slice in the partial sums
};

Pass pass_from(const LoraProduct& product, std::int64_t first, std::int64_t block_columns) {
  Pass pass{first, std::min(kLoraRanks, product.most_ranks() - first), {}, 0, {}};
  std::int64_t column = 0, ds_offset = 0;
  for (int i = 0; i < product.num_slices; ++i) {
    LoraSlice slice = product.slices[i];
    pass.columns[i] = column;
    column += blocks_for(slice.width, 8) * 8;
    slice.column += first;
    slice.ranks = std::min(kLoraRanks, slice.ranks - first);
    if (slice.ranks <= 0 || slice.width == 0) continue;
    const std::int64_t blocks = blocks_for(slice.width, block_columns);
    pass.num_blocks = append(pass.slices, {0, slice, pass.columns[i], ds_offset}, pass.num_blocks, blocks);
    ds_offset += blocks * product.num_tokens * slice.ranks;
  }
  return pass;
}

/// The sums of the second launch, for the outputs with ranks in this pass.
std::int64_t append_sums(const LoraProduct& product, const Pass& pass, const Items<Output>& outputs,
                         Items<PartialSum>& sums) {
  std::int64_t num_blocks = 0;
  for (int i = 0; i < outputs.count; ++i) {
    const Output& to = outputs.list[i];
    const std::int64_t begin = std::max(to.row, pass.first), end = std::min(to.row + to.ranks, pass.first + kLoraRanks);
    const std::int64_t width = product.slices[to.slice].width;
    if (begin >= end) continue;
    num_blocks = append(sums,
                        {0, begin - pass.first, end - begin, pass.columns[to.slice], width,
                         to.grad + (begin - to.row) * to.rank_stride, to.rank_stride, to.column_stride, to.scale},
                        num_blocks, blocks_for(width, kWarpSize));
  }
  return num_blocks;
}

template <class T>
void launch_products(const char* name, Rows<const T> big, Rows<const T> thin, const LoraProduct& product,
                     const Pass& pass, float* workspace, Stream stream) {
  const LoraChunks chunks = product.chunks();
  const Grid grid{pass.num_blocks, chunks.num_chunks};
  if constexpr (std::is_same_v<T, Bf16>) {
    if (product.on_tensor_cores) {
      return launch(name, tensor_kernel(pass.rows, false), grid, threads_of(product), stream,
                    TensorOperands{big, thin, {}, product.num_tokens, workspace, nullptr}, pass.slices, chunks,
                    pass.rows);
    }
  }
  auto kernel = partial_products_kernel<T, false>;
  if constexpr (!std::is_same_v<T, Bf16>) {
    if (fits_packs(product, big)) kernel = partial_products_kernel<T, true>;
  }
  launch(name, kernel, grid, static_cast<unsigned>(blocks_for(pass.rows, kRanks)) * kColumnLanes, stream, big, thin,
         product.num_tokens, pass.slices, chunks, pass.rows, workspace);
}

template <class T>
void add_product(const char* name, Rows<const T> big, Rows<const T> thin, const LoraProduct& product,
                 const Items<Output>& outputs, float* workspace, Stream stream) {
  if (product.num_tokens == 0) return;
  const std::int64_t block_columns = product.on_tensor_cores ? product.block_columns() : kColumnLanes * kFullPack<T>;
  for (std::int64_t first = 0; first < product.most_ranks(); first += kLoraRanks) {
    const Pass pass = pass_from(product, first, block_columns);
    launch_products(name, big, thin, product, pass, workspace, stream);
    Items<PartialSum> sums{};
    const std::int64_t num_blocks = append_sums(product, pass, outputs, sums);
    launch(name, add_partials_kernel, {num_blocks, pass.rows}, kSumThreads, stream, workspace, product.chunks(),
           pass.rows, sums);
  }
}

Items<Output> outputs_of_b(const LoraTargets& targets) {
  Items<Output> outputs{};
  for (const LoraTarget& t : targets) {
    outputs.list[outputs.count] = {outputs.count, 0, t.rank, t.grad.data, 1, t.grad.stride, t.scale};
    ++outputs.count;
  }
  return outputs;
}

void add_piece_with_ds(Rows<const Bf16> dy, Rows<const Bf16> scaled_b, Rows<const Bf16> s, const LoraTargets& targets,
                       const LoraProduct& product, std::int64_t C, Rows<Bf16> ds, float* workspace, Stream stream) {
  constexpr auto kName = "lora_grad_s_and_b";
  const std::int64_t N = product.num_tokens;
  const LoraChunks chunks = product.chunks();
  float* const ds_partials = workspace + chunks.workspace_elements;
  const Pass pass = pass_from(product, 0, product.block_columns());
  launch(kName, tensor_kernel(pass.rows, true), {pass.num_blocks, chunks.num_chunks}, threads_of(product), stream,
         TensorOperands{dy, s, scaled_b, N, workspace, ds_partials}, pass.slices, chunks, pass.rows);
  Items<PartialSum> sums{};
  DsSums to{ds, N, C, append_sums(product, pass, outputs_of_b(targets), sums), ds_partials, {}, 0};
  for (int i = 0; i < pass.slices.count; ++i) {
    const PartialSlice& part = pass.slices.list[i];
    to.list[to.count++] = {part.slice.column, part.slice.ranks, blocks_for(part.slice.width, product.block_columns()),
                           part.ds_offset};
  }
  const std::int64_t ds_blocks = blocks_for(blocks_for(N * C, kSumThreads), pass.rows);
  launch(kName, add_partials_and_write_ds_kernel, {to.num_sum_blocks + ds_blocks, pass.rows}, kSumThreads, stream,
         workspace, chunks, pass.rows, sums, to);
}

}  // namespace

template <class T>
void lora_grad_b_cuda(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, const LoraProduct& product,
                      float* workspace, Stream stream) {
  add_product("lora_grad_b", dy, s, product, outputs_of_b(targets), workspace, stream);
}

template <class T>
void lora_grad_a_cuda(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, const LoraProduct& product,
                      float* workspace, Stream stream) {
  Items<Output> outputs{};
  for (const LoraTarget& t : targets) {
    outputs.list[outputs.count++] = {0, t.column, t.rank, t.grad.data, t.grad.stride, 1, t.scale};
  }
  add_product("lora_grad_a", x, ds, product, outputs, workspace, stream);
}

void lora_grad_s_and_b_cuda(Rows<const Bf16> dy, Rows<const Bf16> scaled_b, Rows<const Bf16> s,
                            const LoraTargets& targets, const LoraProduct& product, std::int64_t C, Rows<Bf16> ds,
                            float* workspace, Stream stream) {
  product.for_each_piece([&](std::int64_t first, const LoraProduct& piece) {
    add_piece_with_ds({dy[first], dy.stride}, scaled_b, {s[first], s.stride}, targets, piece, C, {ds[first], ds.stride},
                      workspace, stream);
  });
}

LORA_TRAIN_INSTANTIATE(lora_grad_b_cuda);
LORA_TRAIN_INSTANTIATE(lora_grad_a_cuda);

}  // namespace lora_train::kernels
