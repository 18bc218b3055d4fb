// Converts between fp32 and the 16-bit float types of weight files, as bits. Rounds to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lora_train {

inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float from_f16(std::uint16_t bits) {
  const auto exponent = static_cast<std::uint32_t>(bits >> 10 & 0x1F),
             fraction = static_cast<std::uint32_t>(bits & 0x3FF);
  float size = 0;
  if (exponent == 0)
    size = static_cast<float>(fraction) * 0x1p-24F;
  else if (exponent == 31)
    size = std::bit_cast<float>(0x7F800000U | fraction << 13);
  else
    size = std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
  return (bits & 0x8000) != 0 ? -size : size;
}

/// Values beyond 65504 become infinity; NaN stays NaN.
inline std::uint16_t to_f16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float size = std::fabs(value);
  if (!(size < 65520.0F)) return sign | static_cast<std::uint16_t>(std::isnan(value) ? 0x7E00 : 0x7C00);
  if (size < 0x1p-14F) return sign | static_cast<std::uint16_t>(std::nearbyint(size * 0x1p24F));
  int exponent = 0;
  const float fraction = std::frexp(size, &exponent);  // in [0.5, 1)
  // A fraction that rounds up to 2048 carries into the exponent by itself.
  return sign | static_cast<std::uint16_t>(((exponent + 13) << 10) + static_cast<int>(std::nearbyint(fraction * 2048)));
}

}  // namespace lora_train
