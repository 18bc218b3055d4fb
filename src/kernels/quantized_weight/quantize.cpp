#include <ATen/ATen.h>

#include <numeric>

#include "dispatch/checks.h"
#include "dispatch/cpu_arguments.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/quantized_weight/dynamic_map.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "maps.h"
#include "quantized_weight_cpu.h"

namespace lora_train::kernels {
namespace {

constexpr auto kQuantizeRows = "quantize_rows";

void check_range(const at::Tensor& rows, std::int64_t begin, const QuantizedWeight& weight) {
  check_shape(kQuantizeRows, "rows", rows, {-1, weight.in_features});
  const std::int64_t multiple = row_multiple(weight), end = begin + rows.size(0);
  const bool is_last = end == weight.out_features;
  if (begin < 0 || end > weight.out_features || begin % multiple != 0 || (end % multiple != 0 && !is_last)) {
    throw ShapeError(kQuantizeRows, "rows " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                                        std::to_string(weight.out_features) + ", expected multiples of " +
                                        std::to_string(multiple));
  }
}

}  // namespace

QuantizedWeight make_quantized_weight(WeightCode code, std::int64_t out_features, std::int64_t in_features,
                                      const at::Device& device) {
  QuantizedWeight weight;
  weight.code = code;
  weight.out_features = out_features;
  weight.in_features = in_features;
  const auto empty = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(device).dtype(dtype));
  };
  if (has_4_bits(code)) {
    const std::int64_t count = out_features * in_features;
    weight.map = (code == WeightCode::kNf4 ? nf4_map() : fp4_map()).to(device);
    weight.codes = empty({ceil_div(count, 2)}, at::kByte);
    weight.scales = empty({ceil_div(count, weight.block_size)}, at::kFloat);
  } else if (code == WeightCode::kInt8) {
    weight.codes = empty({out_features, in_features}, at::kChar);
    weight.scales = empty({out_features}, at::kFloat);
  } else {
    weight.codes = empty({out_features, in_features}, at::kFloat8_e4m3fn);
    weight.scales =
        empty({ceil_div(out_features, weight.block_rows), ceil_div(in_features, weight.block_columns)}, at::kFloat);
  }
  return weight;
}

std::int64_t row_multiple(const QuantizedWeight& weight) {
  if (weight.code == WeightCode::kInt8) return 1;
  if (weight.code == WeightCode::kFp8) return weight.block_rows;
  return weight.block_size / std::gcd(weight.block_size, weight.in_features);
}

RowRange range_of(QuantizedWeight& weight, std::int64_t begin, std::int64_t count) {
  if (!has_4_bits(weight.code)) {
    const std::int64_t per_scale = weight.code == WeightCode::kInt8 ? 1 : weight.block_rows;
    return {weight.codes.narrow(0, begin, count),
            weight.scales.narrow(0, begin / per_scale, (count + per_scale - 1) / per_scale)};
  }
  const std::int64_t first = begin * weight.in_features, size = count * weight.in_features;
  return {weight.codes.narrow(0, first / 2, (size + 1) / 2),
          weight.scales.narrow(0, first / weight.block_size, (size + weight.block_size - 1) / weight.block_size)};
}

void quantize_rows(const at::Tensor& rows, std::int64_t begin, QuantizedWeight& weight) {
  check_range(rows, begin, weight);
  RowRange range = range_of(weight, begin, rows.size(0));
  const WorkScope recorded(kQuantizeRows, WorkClass::kCopy, [&](Work& work) {
    work.reads("rows", rows).writes("codes", range.codes).writes("scales", range.scales);
  });
  if (rows.is_meta() || rows.numel() == 0) return;
  const bool is_int8 = weight.code == WeightCode::kInt8;
  const at::Tensor exact = is_int8                           ? rows.to(at::kHalf).to(at::kFloat)
                           : rows.scalar_type() == at::kHalf ? rows.to(at::kFloat)
                                                             : rows;
  if (!exact.is_cpu() || implementation_for(KernelName::kCast, exact) == Implementation::kReference) {
    return quantize_rows_reference(rows, begin, weight);
  }
  const at::Tensor w = exact.contiguous();
  float* const scales = write<float>(range.scales);
  if (is_int8) return quantize_int8_cpu(read<float>(w), w.size(0), w.size(1), write<std::int8_t>(range.codes), scales);
  dispatch_dtype(w, [&]<class T>(ElementType<T>) {
    if (weight.code == WeightCode::kFp8) {
      quantize_fp8_cpu(read<T>(w), w.size(0), w.size(1), weight.block_rows, weight.block_columns,
                       write<std::uint8_t>(range.codes), scales);
    } else {
      quantize_4_bits_cpu(read<T>(w), w.numel(), weight.block_size, weight.code == WeightCode::kFp4,
                          thresholds_of(weight.code).const_data_ptr<float>(), write<std::uint8_t>(range.codes), scales);
    }
  });
}

bool are_scales_finite(const QuantizedWeight& weight) {
  return weight.scales.is_meta() || at::isfinite(weight.scales).all().item<bool>();
}

void finish_nested(QuantizedWeight& weight) {
  check_vector("finish_nested", "scales", weight.scales, -1, at::kFloat);
  const std::int64_t count = weight.scales.size(0), size = weight.nested_block_size,
                     num_blocks = (count + size - 1) / size;
  weight.nested_map = dynamic_map(/*is_signed=*/true).to(weight.scales.device());
  if (weight.scales.is_meta()) {
    weight.nested_scales = at::empty({num_blocks}, weight.scales.options());
    weight.scales = at::empty({count}, weight.scales.options().dtype(at::kByte));
    return;
  }
  const at::Tensor offset = weight.scales.mean();
  weight.nested_offset = offset.item<float>();
  const at::Tensor centered =
      at::constant_pad_nd(weight.scales - offset, {0, num_blocks * size - count}).view({num_blocks, size});
  weight.nested_scales = at::amax(centered.abs(), 1);
  const at::Tensor scaled = centered * weight.nested_scales.clamp_min(1e-38).reciprocal().unsqueeze(1);
  const at::Tensor thresholds =
      at::tensor(at::ArrayRef<float>(kSignedMap.thresholds), at::kFloat).to(weight.scales.device());
  const at::Tensor codes = at::bucketize(scaled, thresholds, /*out_int32=*/true);
  weight.scales = codes.flatten().narrow(0, 0, count).to(at::kByte);
}

}  // namespace lora_train::kernels
