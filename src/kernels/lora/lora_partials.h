// Part of lora_cuda.cu: the layout of the partial sums that its first launch writes, and the second launch, which reduces them.
#pragma once

#include "launch/launch.h"
#include "lora_cuda.h"

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

/// At most kLoraRanks ranks of a slice. Its columns begin at partial_column of the partial sums; the partial sums of its dS begin
/// at ds_offset of theirs.
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

/// Called by all threads of a block of kSumThreads.
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

/// Columns [column, column + ranks) of dS: the sum of num_blocks partial sums [num_tokens, ranks], which begin at ds_offset.
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

}  // namespace
}  // namespace lora_train::kernels
