// Contract in quantized_weight.h, on a GPU in stream order: pointers are device memory. To is float or Bf16. No torch here.
#pragma once

#include <cstdint>

#include "launch/pack.h"
#include "weight_view.h"

namespace lora_train::kernels {

constexpr unsigned kDequantThreads = 256;
constexpr int kDequantPack = 8;   // neighbouring elements of a thread
constexpr int kDequantPacks = 4;  // per thread

/// What a segment reads: codes, or the plain elements of a matrix whose rows are strided.
enum class SegmentSource : std::uint32_t { kCodes, kFloat, kBf16 };

/// A matrix to dequantise, or a plain one to multiply by a factor. Its blocks of threads follow each other, from first_block
/// on.
struct DequantSegment {
  WeightView weight;  ///< of a plain matrix only its sizes
  Rows<void> to;
  std::int64_t first_block;
  std::uint32_t num_packs;  ///< 0: this matrix goes element by element
  std::uint32_t packs_per_row;
  std::uint32_t multiplier, shift;  ///< pack / packs_per_row = pack * multiplier >> shift, for packs below 2^31
  Rows<const void> plain;
  float factor;  ///< of plain elements
  SegmentSource source;
};

/// Cuts a segment into packs, if its matrix has less than 2^31 of them.
inline void use_packs(DequantSegment& segment) {
  const std::int64_t packs_per_row = segment.weight.width / kDequantPack;
  const std::int64_t num_packs = segment.weight.num_rows * packs_per_row;
  if (num_packs == 0 || segment.weight.width % kDequantPack != 0 || num_packs >= (std::int64_t{1} << 31)) return;
  segment.num_packs = static_cast<std::uint32_t>(num_packs);
  segment.packs_per_row = static_cast<std::uint32_t>(packs_per_row);
  std::uint32_t log2 = 0;
  while (std::int64_t{1} << log2 < packs_per_row) ++log2;
  segment.shift = 31 + log2;
  const auto divisor = static_cast<std::uint64_t>(packs_per_row);
  segment.multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << segment.shift) + divisor - 1) / divisor);
}

template <class To>
DequantSegment dequant_segment(const WeightView& weight, Rows<To> to, std::int64_t first_block) {
  DequantSegment segment{};
  segment.weight = weight;
  segment.to = {to.data, to.stride};
  segment.first_block = first_block;
  // A pack lies in one block, and is loaded at once.
  if (fits_packs(to, weight.width) && reinterpret_cast<std::uintptr_t>(weight.codes) % kDequantPack == 0 &&
      (weight.code != WeightCode::kFp8 || weight.nested_shift >= 3)) {
    use_packs(segment);
  }
  return segment;
}

/// to = from * factor.
template <class From, class To>
DequantSegment plain_segment(Rows<const From> from, float factor, Rows<To> to, std::int64_t num_rows,
                             std::int64_t width, std::int64_t first_block) {
  DequantSegment segment{};
  segment.weight.num_rows = num_rows;
  segment.weight.width = width;
  segment.to = {to.data, to.stride};
  segment.first_block = first_block;
  segment.plain = {from.data, from.stride};
  segment.factor = factor;
  segment.source = sizeof(From) == sizeof(float) ? SegmentSource::kFloat : SegmentSource::kBf16;
  if (fits_packs(from, width) && fits_packs(to, width)) use_packs(segment);
  return segment;
}

inline std::int64_t num_blocks(const DequantSegment& segment) {
  const std::int64_t items = segment.num_packs > 0 ? segment.num_packs : segment.weight.num_rows * segment.weight.width;
  return (items + kDequantThreads * kDequantPacks - 1) / (kDequantThreads * kDequantPacks);
}

/// All segments in one launch. segment_of_block [num_blocks], all of them together. Both tables are device memory.
template <class To>
void dequantize_cuda(const DequantSegment* segments, const std::int32_t* segment_of_block, std::int64_t num_blocks,
                     Stream stream);

}  // namespace lora_train::kernels
