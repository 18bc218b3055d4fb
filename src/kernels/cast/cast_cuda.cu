// Many small matrices in one launch: a block takes up to 1024 packs of 8 elements of one matrix, selected by a table in
// device memory, so that narrow adapter columns and long weights fill their blocks equally. Memory traffic: 4 bytes per
// element read, 2 written in bf16, and 68 bytes of the tables per block, 0.1% of the block's traffic.
#include "cast_parts.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

/// Copies the items of a block: kSize neighbouring elements each.
template <class To, int kSize>
__device__ __forceinline__ void copy_items(const CopySegment& segment, std::int64_t block) {
  const std::int64_t per_row = segment.width / kSize, count = segment.num_rows * per_row;
  const std::int64_t first = block * (kCopyThreads * kCopyPacks) + threadIdx.x;
  const Rows<To> to{static_cast<To*>(segment.to.data), segment.to.stride};
  float values[kCopyPacks][kSize];
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCopyPacks; ++k) {
    const std::int64_t i = first + k * kCopyThreads;
    if (i < count) load_floats<kSize>(segment.from[i / per_row] + i % per_row * kSize, values[k]);
  }
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCopyPacks; ++k) {
    const std::int64_t i = first + k * kCopyThreads;
    if (i >= count) continue;
    for (int j = 0; j < kSize; ++j) values[k][j] *= segment.scale;
    store_floats<kSize>(to[i / per_row] + i % per_row * kSize, values[k]);
  }
}

template <class To>
__global__ void __launch_bounds__(kCopyThreads)
    scaled_copies_kernel(const CopySegment* segments, const std::int32_t* segment_of_block) {
  const CopySegment segment = segments[segment_of_block[blockIdx.x]];
  const std::int64_t block = blockIdx.x - segment.first_block;
  segment.is_packed ? copy_items<To, kFullPack<Bf16>>(segment, block) : copy_items<To, 1>(segment, block);
}

}  // namespace

template <class To>
void scaled_copies_cuda(const CopySegment* segments, const std::int32_t* segment_of_block, std::int64_t num_blocks,
                        Stream stream) {
  launch("scaled_copies", scaled_copies_kernel<To>, {num_blocks}, kCopyThreads, stream, segments, segment_of_block);
}

LORA_TRAIN_INSTANTIATE(scaled_copies_cuda);

}  // namespace lora_train::kernels
