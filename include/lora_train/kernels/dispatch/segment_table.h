#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// What a launch over many tensors reads, in the memory of its device: their segments, and the segment of each block.
struct SegmentTable {
  at::Tensor segments;          ///< bytes
  at::Tensor segment_of_block;  ///< int32 [blocks of all segments]

  bool defined() const { return segments.defined(); }
};

}  // namespace lora_train::kernels
