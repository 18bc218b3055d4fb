// Contracts in quantized_weight.h, on the CPU, for a range of rows. No torch here.
#pragma once

#include <cstdint>

#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "weight_view.h"

namespace lora_train::kernels {

/// To is float or Bf16.
template <class To>
void dequantize_cpu(const WeightView& weight, Rows<To> to);

/// 4 bits: blocks of block_size elements of w [count], the first of which begins a block. codes [ceil(count / 2)],
/// scales [ceil(count / block_size)]. thresholds: 15 ascending ones between the values of the map, or for fp4 7 between its
/// magnitudes. T is float or Bf16.
template <class T>
void quantize_4_bits_cpu(const T* w, std::int64_t count, std::int64_t block_size, bool is_fp4, const float* thresholds,
                         std::uint8_t* codes, float* scales);

/// w [num_rows, width], rounded to fp16 by the caller.
void quantize_int8_cpu(const float* w, std::int64_t num_rows, std::int64_t width, std::int8_t* codes, float* scales);

/// Tiles of tile_rows x tile_columns. T is float or Bf16.
template <class T>
void quantize_fp8_cpu(const T* w, std::int64_t num_rows, std::int64_t width, std::int64_t tile_rows,
                      std::int64_t tile_columns, std::uint8_t* codes, float* scales);

/// Codes and scales of `count` rows from `begin` on, multiples of row_multiple, as views.
struct RowRange {
  at::Tensor codes, scales;
};
RowRange range_of(QuantizedWeight& weight, std::int64_t begin, std::int64_t count);

}  // namespace lora_train::kernels
