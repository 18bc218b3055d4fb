// 4 bits: 8 codes become 8 indices by shifts of one word, and one shuffle of the map in two registers looks all of them up.
// Memory traffic as in quantized_weight_cuda.cu.
#include <algorithm>
#include <cstring>

#include "launch/vector_math.h"
#include "lora_train/kernels/launch/parallel.h"
#include "quantized_weight_cpu.h"

namespace lora_train::kernels {
namespace {

typedef float Floats8 __attribute__((vector_size(32)));
typedef std::uint32_t Words8 __attribute__((vector_size(32)));
typedef std::uint16_t Halves8 __attribute__((vector_size(16)));

LORA_TRAIN_INLINE void store_8(float* to, const Floats8& values) { std::memcpy(to, &values, sizeof values); }
LORA_TRAIN_INLINE void store_8(Bf16* to, const Floats8& values) {  // as to_bf16
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

}  // namespace

template <class To>
void dequantize_cpu(const WeightView& weight, Rows<To> to) {
  parallel_ranges(weight.num_rows, row_grain(weight.width), [&](std::int64_t begin, std::int64_t end) {
    if (has_4_bits(weight.code)) {
      write_4_bit_rows(weight, to, begin, end);
    } else if (weight.code == WeightCode::kInt8) {
      write_int8_rows(weight, to, begin, end);
    } else {
      write_fp8_rows(weight, to, begin, end);
    }
  });
}

LORA_TRAIN_INSTANTIATE(dequantize_cpu);

}  // namespace lora_train::kernels
