// Dequantising 4 bits: 8 codes become 8 indices by shifts of one word, and one shuffle of the map in two registers
// looks all of them up. Memory traffic as in quantized_weight_cuda.cu. Quantising makes two passes over a block, the
// second from the first cache: the largest magnitude (by its bits, so that NaN is the largest), and the codes. Memory
// traffic per bf16 element: 2 bytes read; 0.5 + 4/64 (4 bits) or 1 written.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"
#include "quantized_weight_parts.h"

namespace lora_train::kernels {
namespace {

typedef float Floats8 __attribute__((vector_size(32)));
typedef std::uint32_t Words8 __attribute__((vector_size(32)));
typedef std::uint16_t Halves8 __attribute__((vector_size(16)));

LORA_TRAIN_INLINE void store_8(float* to, const Floats8& values) { std::memcpy(to, &values, sizeof values); }
LORA_TRAIN_INLINE void store_8(Bf16* to, const Floats8& values) {  // same rounding as to_bf16
  Words8 bits;
  std::memcpy(&bits, &values, sizeof bits);
  const Words8 rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  const Words8 is_nan = reinterpret_cast<Words8>((bits & 0x7FFFFFFFu) > 0x7F800000u);
  const Halves8 halves = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7FC0u), Halves8);
  std::memcpy(to, &halves, sizeof halves);
}

/// fl(fl(code * scale) + offset): this file is compiled without contraction to multiply-adds.
LORA_TRAIN_INLINE float scale_of_block(const WeightView& weight, std::int64_t block) {
  if (weight.nested_scales == nullptr) return static_cast<const float*>(weight.scales)[block];
  const float code = weight.nested_map[static_cast<const std::uint8_t*>(weight.scales)[block]];
  return code * weight.nested_scales[block >> weight.nested_shift] + weight.nested_offset;
}

/// Elements [first, first + count) of the flat matrix, all in one block.
template <class To>
LORA_TRAIN_INLINE void write_4_bits(const std::uint8_t* codes, std::int64_t first, std::int64_t count, const float* map,
                                    float scale, To* to) {
  Floats8 low, high;
  std::memcpy(&low, map, sizeof low);
  std::memcpy(&high, map + 8, sizeof high);
  std::int64_t i = 0;
  const auto write_one = [&] {
    const unsigned both = codes[(first + i) / 2];
    store(to + i, map[(first + i) % 2 == 0 ? both >> 4 : both & 15u] * scale);
    ++i;
  };
  if (first % 2 != 0) write_one();
  for (; i + 8 <= count; i += 8) {
    std::uint32_t word;
    std::memcpy(&word, codes + (first + i) / 2, sizeof word);
    const Words8 index = (Words8{} + word) >> Words8{4, 0, 12, 8, 20, 16, 28, 24} & 15u;
    store_8(to + i, __builtin_shuffle(low, high, index) * scale);
  }
  while (i < count) write_one();
}

template <class To>
LORA_TRAIN_CLONES void write_4_bit_rows(const WeightView& weight, Rows<To> to, std::int64_t begin, std::int64_t end) {
  const auto* const codes = static_cast<const std::uint8_t*>(weight.codes);
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t row = n * weight.width, row_end = row + weight.width;
    for (std::int64_t i = row; i < row_end;) {
      const std::int64_t block = i >> weight.block_shift;
      const std::int64_t block_end = std::min(row_end, (block + 1) << weight.block_shift);
      write_4_bits(codes, i, block_end - i, weight.map, scale_of_block(weight, block), to[n] + (i - row));
      i = block_end;
    }
  }
}

template <class To>
LORA_TRAIN_CLONES void write_int8_rows(const WeightView& weight, Rows<To> to, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const auto* const codes = static_cast<const std::int8_t*>(weight.codes) + n * weight.width;
    const float scale = static_cast<const float*>(weight.scales)[n] * kInt8Step;
    To* const row = to[n];
#pragma omp simd
    for (std::int64_t d = 0; d < weight.width; ++d) store(row + d, static_cast<float>(codes[d]) * scale);
  }
}

template <class To>
LORA_TRAIN_CLONES void write_fp8_rows(const WeightView& weight, Rows<To> to, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const auto* const codes = static_cast<const std::uint8_t*>(weight.codes) + n * weight.width;
    const float* const scales =
        static_cast<const float*>(weight.scales) + (n >> weight.block_shift) * weight.tiles_per_row;
    for (std::int64_t tile = 0; tile < weight.tiles_per_row; ++tile) {
      const std::int64_t first = tile << weight.nested_shift;
      const std::int64_t last = std::min(weight.width, (tile + 1) << weight.nested_shift);
      const float scale = scales[tile];
      To* const row = to[n];
#pragma omp simd
      for (std::int64_t d = first; d < last; ++d) store(row + d, e4m3_to_float(std::uint32_t{codes[d]} << 24) * scale);
    }
  }
}

constexpr std::int64_t kGrainElements = 16384;  // per thread; with fewer, another one costs more than it gains

template <class T>
LORA_TRAIN_INLINE std::uint32_t largest_bits(const T* w, std::int64_t count, std::uint32_t largest = 0) {
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, bits_of_float(load(w + i)) & 0x7FFFFFFFu);
  return largest;
}

/// The code of every element as a byte; returns the scale.
template <class T>
LORA_TRAIN_CLONES float code_block(const T* w, std::int64_t count, const float* thresholds, std::uint8_t* codes) {
  const float scale = float_of_bits(largest_bits(w, count)), inverse = 1.0F / std::max(scale, 1e-38F);
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = load(w + i) * inverse;
    unsigned rank = 0;
    for (int t = 0; t < 15; ++t) rank += x > thresholds[t] ? 1 : 0;
    codes[i] = static_cast<std::uint8_t>(rank);
  }
  return scale;
}

LORA_TRAIN_CLONES float code_int8_row(const float* w, std::int64_t width, std::int8_t* codes) {
  const float scale = float_of_bits(largest_bits(w, width));
  if (scale == 0 || !std::isfinite(scale)) {
    std::fill_n(codes, width, std::int8_t{0});
    return scale;
  }
  const float per_step = 127.0F * (1.0F / scale);
  for (std::int64_t d = 0; d < width; ++d) codes[d] = static_cast<std::int8_t>(std::rint(w[d] * per_step));
  return scale;
}

template <class T>
LORA_TRAIN_CLONES float code_fp8_tile(const T* w, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                      std::uint8_t* codes) {
  std::uint32_t largest = 0;
  for (std::int64_t n = 0; n < rows; ++n) largest = largest_bits(w + n * stride, columns, largest);
  float scale = float_of_bits(largest) / 448.0F;
  if (scale == 0) scale = 1;
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t d = 0; d < columns; ++d) codes[n * stride + d] = float_to_e4m3(load(w + n * stride + d) / scale);
  }
  return scale;
}

}  // namespace

template <class To>
void dequantize_cpu(const WeightView& weight, Rows<To> to) {
  parallel_ranges(weight.num_rows, row_grain(weight.width), [&](std::int64_t begin, std::int64_t end) {
    if (weight.code == WeightCode::k4Bit) {
      write_4_bit_rows(weight, to, begin, end);
    } else if (weight.code == WeightCode::kInt8) {
      write_int8_rows(weight, to, begin, end);
    } else {
      write_fp8_rows(weight, to, begin, end);
    }
  });
}

LORA_TRAIN_INSTANTIATE(dequantize_cpu);

template <class T>
void quantize_4_bits_cpu(const T* w, std::int64_t count, std::int64_t block_size, const float* thresholds,
                         std::uint8_t* codes, float* scales) {
  const std::int64_t num_blocks = (count + block_size - 1) / block_size;
  parallel_ranges(num_blocks, kGrainElements / block_size, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> block(static_cast<std::size_t>(block_size));
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * block_size, size = std::min(block_size, count - first);
      // An odd count leaves half a byte, which gets the code of zero.
      if (size % 2 != 0) block[static_cast<std::size_t>(size)] = 7;
      scales[b] = code_block(w + first, size, thresholds, block.data());
      const std::uint8_t* const pairs = block.data();
      std::uint8_t* const out = codes + first / 2;
      for (std::int64_t i = 0; i < (size + 1) / 2; ++i)
        out[i] = static_cast<std::uint8_t>(pairs[2 * i] << 4 | pairs[2 * i + 1]);
    }
  });
}

void quantize_int8_cpu(const float* w, std::int64_t num_rows, std::int64_t width, std::int8_t* codes, float* scales) {
  parallel_ranges(num_rows, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) scales[n] = code_int8_row(w + n * width, width, codes + n * width);
  });
}

template <class T>
void quantize_fp8_cpu(const T* w, std::int64_t num_rows, std::int64_t width, std::int64_t tile_rows,
                      std::int64_t tile_columns, std::uint8_t* codes, float* scales) {
  const std::int64_t across = (width + tile_columns - 1) / tile_columns, down = (num_rows + tile_rows - 1) / tile_rows;
  parallel_ranges(across * down, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t row = tile / across * tile_rows, column = tile % across * tile_columns;
      const std::int64_t at = row * width + column;
      scales[tile] = code_fp8_tile(w + at, width, std::min(tile_rows, num_rows - row),
                                   std::min(tile_columns, width - column), codes + at);
    }
  });
}

LORA_TRAIN_INSTANTIATE(quantize_4_bits_cpu);
LORA_TRAIN_INSTANTIATE(quantize_fp8_cpu);

}  // namespace lora_train::kernels
