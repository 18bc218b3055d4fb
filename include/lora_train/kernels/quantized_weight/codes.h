// Element codes: of quantised weights, and the 8-bit types of moments and nested scales. No torch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace lora_train::kernels {

/// Every product is rounded once to fp32; the result is then rounded once to the output dtype.
enum class WeightCode {
  k4Bit,  ///< w = map[code] * scale of the block of `block_size` elements of the flat row-major matrix. Blocks cross
          ///< rows; the last may be short
  kInt8,  ///< w = code * fl(scale of the row * fl(1 / 127)). The scale (bitsandbytes' SCB) is the largest magnitude
  kFp8  ///< w = value of the code * scale of the tile of block_rows x block_columns. Tiles at the edges may be smaller
};

// The 8-bit types of bitsandbytes (functional.create_dynamic_map; arXiv 1511.04561): seven decades of values, each with
// twice as many as the one below it.

/// The values of 256 codes, in [-1, 1] (signed) or [0, 1].
struct DynamicMap {
  float values[256];      ///< by code, ascending. 0 has code 127, in the unsigned map code 0; code 255 is 1
  float thresholds[255];  ///< the nearest code to x (the even one of two) is the number of thresholds below x
};

/// Has the bits of bitsandbytes' map on every CPU with fused multiply-add.
constexpr DynamicMap make_dynamic_map(bool is_signed) {
  constexpr float kDecades[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  DynamicMap map{};
  float* end = map.values;
  int parts = is_signed ? 1 : 2;
  for (const float decade : kDecades) {
    // torch.linspace(0.1, 1, parts + 1): from the nearer end, rounded once. fp64 is exact here.
    const double step = (1.0F - 0.1F) / static_cast<float>(parts);
    const auto boundary = [&](int i) {
      return static_cast<float>(i < (parts + 1) / 2 ? double{0.1F} + step * i : 1.0 - step * (parts - i));
    };
    for (int i = 0; i < parts; ++i) {
      const float value = decade * ((boundary(i) + boundary(i + 1)) / 2);
      *end++ = value;
      if (is_signed) *end++ = -value;
    }
    parts *= 2;
  }
  *end++ = 0;
  *end++ = 1;
  std::sort(map.values, end);
  for (int code = 0; code < 255; ++code) {
    const float middle = (map.values[code] + map.values[code + 1]) * 0.5F;
    const auto bits = std::bit_cast<std::uint32_t>(middle);
    // A tie goes up from an odd code: the threshold is then the next smaller number.
    map.thresholds[code] = code % 2 == 0 ? middle : std::bit_cast<float>(middle > 0 ? bits - 1 : bits + 1);
  }
  return map;
}

inline constexpr DynamicMap kSignedMap = make_dynamic_map(true), kUnsignedMap = make_dynamic_map(false);

}  // namespace lora_train::kernels
