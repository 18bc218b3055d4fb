// Launches over many tensors: their segments, and the blocks of each.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {

/// The input of a launch over many tensors, in device memory: their segments, and the segment of each block.
struct SegmentTable {
  at::Tensor segments;          ///< bytes
  at::Tensor segment_of_block;  ///< int32 [blocks of all segments]

  bool defined() const { return segments.defined(); }
};

/// Collects segments, each launched with num_blocks(segment) blocks, and uploads them.
template <class Segment>
class SegmentTableBuilder {
 public:
  /// The first block of the segment that is added next.
  std::int64_t next_block() const { return std::ssize(segment_of_block_); }
  void add(const Segment& segment) {
    segment_of_block_.insert(segment_of_block_.end(), static_cast<std::size_t>(num_blocks(segment)),
                             static_cast<std::int32_t>(segments_.size()));
    segments_.push_back(segment);
  }
  SegmentTable upload(at::Device device) {
    const auto copy = [&](void* data, std::int64_t count, at::ScalarType type) {
      return at::from_blob(data, {count}, type).clone().to(device);
    };
    return {copy(segments_.data(), static_cast<std::int64_t>(segments_.size() * sizeof(Segment)), at::kByte),
            copy(segment_of_block_.data(), next_block(), at::kInt)};
  }

 private:
  std::vector<Segment> segments_;
  std::vector<std::int32_t> segment_of_block_;
};

/// The table as kernel arguments.
template <class Segment>
const Segment* segments_of(const SegmentTable& table) {
  return reinterpret_cast<const Segment*>(table.segments.const_data_ptr());
}

}  // namespace lora_train::kernels
