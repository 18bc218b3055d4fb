// Contracts in quantized_weight.h: a quantised weight as pointers and sizes; on a CPU for a range of rows; on a GPU in
// stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"
#include "lora_train/kernels/quantized_weight/codes.h"

namespace lora_train::kernels {

/// Sizes of blocks are powers of 2, given by their logarithms; kWholeShift for one that spans everything.
struct WeightView {
  WeightCode code;
  float nested_offset;
  std::int64_t num_rows, width;
  const void* codes;
  const float* map;    ///< 4 bits
  const void* scales;  ///< float, or uint8 if nested_scales is set
  const float* nested_scales;
  const float* nested_map;
  std::int64_t tiles_per_row;  ///< fp8
  std::int32_t block_shift;    ///< 4 bits: elements of a block; fp8: rows of a tile
  std::int32_t nested_shift;   ///< 4 bits: scales of a nested block; fp8: columns of a tile
};

constexpr std::int32_t kWholeShift = 31;

constexpr float kInt8Step = 1.0F / 127.0F;

/// The value of the e4m3 number in the highest byte of `bits`, whose lower bytes are 0. Exact, subnormals too.
LORA_TRAIN_INLINE float e4m3_to_float(std::uint32_t bits) {
  constexpr std::uint32_t kNan = 0x7F000000u;
  const std::uint32_t exponent_and_mantissa =
      static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 4) & 0x87F00000u;
  const float value = float_of_bits(exponent_and_mantissa) * 0x1p120F;  // e4m3 has exponent bias 7, float 127
  return (bits & kNan) == kNan ? float_of_bits(0x7FC00000u) : value;
}

/// Round to nearest even; values above 448 become 448. x is not NaN.
LORA_TRAIN_INLINE std::uint8_t float_to_e4m3(float x) {
  const std::uint32_t sign = bits_of_float(x) >> 24 & 0x80u, magnitude = bits_of_float(x) & 0x7FFFFFFFu;
  constexpr std::uint32_t kLargest = 0x43E00000u, kSmallestNormal = 0x3C800000u;  // 448, 2^-6
  const std::uint32_t clamped = magnitude < kLargest ? magnitude : kLargest;
  const std::uint32_t normal = (clamped - (120u << 23) + 0x7FFFFu + (clamped >> 20 & 1u)) >> 20;
  constexpr float kShift = 16384.0F;  // its last bit is worth 2^-9, the step of e4m3's subnormals
  const std::uint32_t subnormal = bits_of_float(float_of_bits(clamped) + kShift) - bits_of_float(kShift);
  return static_cast<std::uint8_t>(sign | (clamped < kSmallestNormal ? subnormal : normal));
}

// On a CPU.

/// To is float or Bf16.
template <class To>
void dequantize_cpu(const WeightView& weight, Rows<To> to);

/// 4 bits: blocks of block_size elements of w [count], starting at a block. codes [ceil(count / 2)],
/// scales [ceil(count / block_size)]. thresholds: 15 ascending ones between the values of the map. T is float or Bf16.
template <class T>
void quantize_4_bits_cpu(const T* w, std::int64_t count, std::int64_t block_size, const float* thresholds,
                         std::uint8_t* codes, float* scales);

/// w [num_rows, width], rounded to fp16 by the caller.
void quantize_int8_cpu(const float* w, std::int64_t num_rows, std::int64_t width, std::int8_t* codes, float* scales);

/// Tiles of tile_rows x tile_columns. T is float or Bf16.
template <class T>
void quantize_fp8_cpu(const T* w, std::int64_t num_rows, std::int64_t width, std::int64_t tile_rows,
                      std::int64_t tile_columns, std::uint8_t* codes, float* scales);

// On a GPU. To is float or Bf16.

constexpr unsigned kDequantThreads = 256;
constexpr int kDequantPack = 8;   // neighbouring elements per thread
constexpr int kDequantPacks = 4;  // per thread

/// The input of a segment: codes, or the plain elements of a matrix with strided rows.
enum class SegmentSource : std::uint32_t { kCodes, kFloat, kBf16 };

/// A matrix to dequantise, or a plain one to multiply by a factor. Its blocks of threads are consecutive, starting at
/// first_block.
struct DequantSegment {
  WeightView weight;  ///< for a plain matrix, only its sizes
  Rows<void> to;
  std::int64_t first_block;
  std::uint32_t num_packs;  ///< 0: this matrix goes element by element
  std::uint32_t packs_per_row;
  std::uint32_t multiplier, shift;  ///< pack / packs_per_row = pack * multiplier >> shift, for packs below 2^31
  Rows<const void> plain;
  float factor;  ///< for plain elements
  SegmentSource source;
};

/// Cuts a segment into packs, if its matrix has fewer than 2^31 of them.
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
  // A pack is within one block and is loaded at once.
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

/// Takes all segments in one launch. segment_of_block [num_blocks] covers all their blocks. Both tables are in device
/// memory.
template <class To>
void dequantize_cuda(const DequantSegment* segments, const std::int32_t* segment_of_block, std::int64_t num_blocks,
                     Stream stream);

}  // namespace lora_train::kernels
