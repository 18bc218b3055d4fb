// Formats and sizes of quantised weights under test.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "lora_train/kernels/quantized_weight/quantized_weight.h"

namespace lora_train::testing_support {

using kernels::QuantizedWeight;
using kernels::WeightCode;

struct Format {
  WeightCode code;
  bool is_nested = false;
  int64_t block_size = 64, block_rows = 128, block_columns = 128;
};
inline const std::vector<Format> kFormats = {{WeightCode::k4Bit},
                                             {WeightCode::k4Bit, true},
                                             {WeightCode::k4Bit, false, 16},
                                             {WeightCode::k4Bit, true, 16},
                                             {WeightCode::kInt8},
                                             {WeightCode::kFp8},
                                             {WeightCode::kFp8, false, 64, 4, 2},
                                             {WeightCode::kFp8, false, 64, 1, 100000},
                                             {WeightCode::kFp8, false, 64, 100000, 100000}};

inline int64_t ceil_divide(int64_t count, int64_t by) { return (count + by - 1) / by; }

/// fp32 tensors with a scale for every block, set up for quantize_rows.
inline QuantizedWeight empty_weight(const Format& format, int64_t O, int64_t D) {
  return make_quantized_weight(format.code, O, D, at::kCPU,
                               {format.block_size, format.block_rows, format.block_columns});
}

inline const std::vector<std::pair<int64_t, int64_t>> kShapes = {{1, 1},    {3, 7},     {5, 64},   {33, 96},  {4, 80},
                                                                 {2, 1001}, {130, 136}, {7, 1288}, {129, 200}};

}  // namespace lora_train::testing_support
