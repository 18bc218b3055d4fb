// A quantised weight as pointers and sizes, for native kernels on CPU and GPU. No torch here.
#pragma once

#include <cstdint>

#include "launch/rows.h"
#include "lora_train/kernels/quantized_weight/weight_code.h"

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

/// Round to nearest even; what is larger than 448 becomes 448. x is no NaN.
LORA_TRAIN_INLINE std::uint8_t float_to_e4m3(float x) {
  const std::uint32_t sign = bits_of_float(x) >> 24 & 0x80u, magnitude = bits_of_float(x) & 0x7FFFFFFFu;
  constexpr std::uint32_t kLargest = 0x43E00000u, kSmallestNormal = 0x3C800000u;  // 448, 2^-6
  const std::uint32_t clamped = magnitude < kLargest ? magnitude : kLargest;
  const std::uint32_t normal = (clamped - (120u << 23) + 0x7FFFFu + (clamped >> 20 & 1u)) >> 20;
  constexpr float kShift = 16384.0F;  // its last bit is worth 2^-9, the step of e4m3's subnormals
  const std::uint32_t subnormal = bits_of_float(float_of_bits(clamped) + kShift) - bits_of_float(kShift);
  return static_cast<std::uint8_t>(sign | (clamped < kSmallestNormal ? subnormal : normal));
}

}  // namespace lora_train::kernels
