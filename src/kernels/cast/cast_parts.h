// Contract in cast.h. To is float or Bf16. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

/// A matrix to copy: to = from * scale. Its blocks are consecutive, starting at first_block.
struct CopySegment {
  Rows<const float> from;
  Rows<void> to;
  std::int64_t num_rows, width, first_block;
  float scale;
  bool is_packed;  ///< all rows allow packs of 16 bytes
};

constexpr unsigned kCopyThreads = 256;
constexpr int kCopyPacks = 4;  // per thread

template <class To>
CopySegment copy_segment(Rows<const float> from, float scale, Rows<To> to, std::int64_t num_rows, std::int64_t width,
                         std::int64_t first_block) {
  const bool is_packed = fits_packs(from, width) && fits_packs(to, width) && width % kFullPack<Bf16> == 0;
  return {from, {to.data, to.stride}, num_rows, width, first_block, scale, is_packed};
}

inline std::int64_t num_blocks(const CopySegment& segment) {
  const std::int64_t items = segment.num_rows * segment.width / (segment.is_packed ? kFullPack<Bf16> : 1);
  return (items + kCopyThreads * kCopyPacks - 1) / (kCopyThreads * kCopyPacks);
}

/// On a CPU.
template <class To>
void scaled_copies_cpu(const CopySegment* segments, std::int64_t num_segments);

/// On a GPU in stream order; pointers are device memory. Takes all segments in one launch. segment_of_block [num_blocks] covers all their blocks. Both tables are in device
/// memory.
template <class To>
void scaled_copies_cuda(const CopySegment* segments, const std::int32_t* segment_of_block, std::int64_t num_blocks,
                        Stream stream);

}  // namespace lora_train::kernels
