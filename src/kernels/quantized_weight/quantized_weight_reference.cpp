#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "maps.h"
#include "quantized_weight_cpu.h"
#include "weight_view.h"

namespace lora_train::kernels {
namespace {

/// Repeats every element `times` along `dim`, and keeps `size` of them.
at::Tensor spread(const at::Tensor& t, std::int64_t times, std::int64_t dim, std::int64_t size) {
  return t.repeat_interleave(std::min(times, size), dim).narrow(dim, 0, size);
}

at::Tensor scales_of_blocks(const QuantizedWeight& weight) {
  if (!weight.is_nested()) return weight.scales;
  const at::Tensor values = weight.nested_map.index_select(0, weight.scales.to(at::kLong));
  return values * spread(weight.nested_scales, weight.nested_block_size, 0, values.size(0)) + weight.nested_offset;
}

at::Tensor values_of(const QuantizedWeight& weight) {
  const std::int64_t O = weight.out_features, D = weight.in_features;
  if (weight.code == WeightCode::kInt8) {
    return weight.codes.to(at::kFloat) * (weight.scales * kInt8Step).unsqueeze(1);
  }
  if (weight.code == WeightCode::kFp8) {
    return weight.codes.to(at::kFloat) *
           spread(spread(weight.scales, weight.block_rows, 0, O), weight.block_columns, 1, D);
  }
  const at::Tensor pairs = at::stack({weight.codes.bitwise_right_shift(4), weight.codes.bitwise_and(15)}, 1);
  const at::Tensor values = weight.map.index_select(0, pairs.flatten().narrow(0, 0, O * D).to(at::kLong));
  return (values * spread(scales_of_blocks(weight), weight.block_size, 0, O * D)).view({O, D});
}

/// [blocks, size], padded with zeros.
at::Tensor in_blocks(const at::Tensor& flat, std::int64_t size) {
  const std::int64_t num_blocks = (flat.size(0) + size - 1) / size;
  return at::constant_pad_nd(flat, {0, num_blocks * size - flat.size(0)}).view({num_blocks, size});
}

void quantize_4_bits(const at::Tensor& w, const QuantizedWeight& weight, RowRange& range) {
  const at::Tensor blocks = in_blocks(w.flatten(), weight.block_size), scales = at::amax(blocks.abs(), 1);
  const at::Tensor x = blocks * scales.clamp_min(1e-38).reciprocal().unsqueeze(1);
  const at::Tensor thresholds = thresholds_of(weight.code).to(w.device());
  at::Tensor codes;
  if (weight.code == WeightCode::kFp4) {
    const at::Tensor ranks = at::bucketize(x.abs(), thresholds);
    codes =
        fp4_codes_by_magnitude().to(w.device()).index_select(0, ranks.flatten()).view_as(x) + (x < 0).to(at::kLong) * 8;
  } else {
    codes = at::bucketize(x, thresholds);
  }
  const at::Tensor pairs = codes.to(at::kByte).view({-1, 2});
  const at::Tensor bytes = pairs.select(1, 0).bitwise_left_shift(4).bitwise_or(pairs.select(1, 1));
  range.codes.copy_(bytes.narrow(0, 0, range.codes.size(0)));
  range.scales.copy_(scales);
}

void quantize_int8(const at::Tensor& w, RowRange& range) {
  const at::Tensor scales = at::amax(w.abs(), 1, /*keepdim=*/true);
  range.codes.copy_((w * (scales.reciprocal() * 127.0)).round().nan_to_num(0));
  range.scales.copy_(scales.squeeze(1));
}

void quantize_fp8(const at::Tensor& w, const QuantizedWeight& weight, RowRange& range) {
  const std::int64_t rows = std::min(weight.block_rows, w.size(0)), columns = std::min(weight.block_columns, w.size(1));
  const std::int64_t down = range.scales.size(0), across = range.scales.size(1);
  const at::Tensor tiles = at::constant_pad_nd(w, {0, across * columns - w.size(1), 0, down * rows - w.size(0)})
                               .view({down, rows, across, columns});
  const at::Tensor largest = at::amax(tiles.abs(), {1, 3});
  const at::Tensor ratio = largest / at::full({}, 448.0, largest.options());  // a number would be its inverse on a GPU
  range.scales.copy_(ratio.masked_fill(ratio == 0, 1.0));
  const at::Tensor x = w / spread(spread(range.scales, rows, 0, w.size(0)), columns, 1, w.size(1));
  range.codes.copy_(x.clamp(-448.0, 448.0).to(at::kFloat8_e4m3fn));
}

}  // namespace

void dequantize_reference(const QuantizedWeight& weight, at::Tensor& out) { out.copy_(values_of(weight)); }

void quantize_rows_reference(const at::Tensor& rows, std::int64_t begin, QuantizedWeight& weight) {
  RowRange range = range_of(weight, begin, rows.size(0));
  if (weight.code == WeightCode::kInt8) return quantize_int8(rows.to(at::kHalf).to(at::kFloat), range);
  const at::Tensor w = rows.to(at::kFloat);
  weight.code == WeightCode::kFp8 ? quantize_fp8(w, weight, range) : quantize_4_bits(w, weight, range);
}

}  // namespace lora_train::kernels
