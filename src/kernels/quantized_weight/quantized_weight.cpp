#include "lora_train/kernels/quantized_weight/quantized_weight.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "dispatch/arguments.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cast/cast.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/dispatch/segment_table.h"
#include "lora_train/kernels/quantized_weight/codes.h"
#include "quantized_weight_parts.h"

namespace lora_train::kernels {
namespace {

constexpr auto kDequantize = "dequantize";

void check_block(const char* name, std::int64_t size, bool fits) {
  if (fits) return;
  throw ShapeError(fmt::format("{}: {}", kDequantize, name), "{}, expected a power of 2", size);
}

void check_four_bits(const QuantizedWeight& weight) {
  const std::int64_t count = weight.out_features * weight.in_features;
  const auto is_power_of_2 = [](std::int64_t size) {
    return size > 0 && std::has_single_bit(static_cast<std::uint64_t>(size));
  };
  check_block("block_size, from 16 to 4096", weight.block_size,
              is_power_of_2(weight.block_size) && weight.block_size >= 16 && weight.block_size <= 4096);
  check_vector(kDequantize, "codes", weight.codes, ceil_div(count, 2), at::kByte);
  check_vector(kDequantize, "map", weight.map, 16, at::kFloat);
  const std::int64_t num_scales = ceil_div(count, weight.block_size);
  check_vector(kDequantize, "scales", weight.scales, num_scales, weight.is_nested() ? at::kByte : at::kFloat);
  if (!weight.is_nested()) return;
  check_block("nested_block_size", weight.nested_block_size, is_power_of_2(weight.nested_block_size));
  check_vector(kDequantize, "nested_scales", weight.nested_scales, ceil_div(num_scales, weight.nested_block_size),
               at::kFloat);
  check_vector(kDequantize, "nested_map", weight.nested_map, 256, at::kFloat);
}

void check_matrix(const char* name, const at::Tensor& t, at::IntArrayRef sizes, at::ScalarType dtype) {
  check_rows(kDequantize, name, t, sizes, dtype);
  check_contiguous(kDequantize, name, t);
}

void check_fp8(const QuantizedWeight& weight) {
  const auto fits = [](std::int64_t size, std::int64_t whole) {
    return size > 0 && (size >= whole || std::has_single_bit(static_cast<std::uint64_t>(size)));
  };
  check_block("block_rows", weight.block_rows, fits(weight.block_rows, weight.out_features));
  check_block("block_columns", weight.block_columns, fits(weight.block_columns, weight.in_features));
  check_matrix("codes", weight.codes, {weight.out_features, weight.in_features}, at::kFloat8_e4m3fn);
  check_matrix("scales", weight.scales,
               {ceil_div(weight.out_features, weight.block_rows), ceil_div(weight.in_features, weight.block_columns)},
               at::kFloat);
}

std::int32_t shift_of(std::int64_t size, std::int64_t whole) {
  return size >= whole ? kWholeShift : std::countr_zero(static_cast<std::uint64_t>(size));
}

/// The pointers of a weight that passed check_quantized_weight.
WeightView view_of(const QuantizedWeight& weight) {
  WeightView view{};
  view.code = weight.code;
  view.num_rows = weight.out_features;
  view.width = weight.in_features;
  view.codes = weight.codes.const_data_ptr();
  view.scales = weight.scales.const_data_ptr();
  if (weight.code == WeightCode::k4Bit) {
    view.map = read<float>(weight.map);
    view.block_shift = shift_of(weight.block_size, weight.block_size + 1);
    view.nested_scales = read<float>(weight.nested_scales);
    view.nested_map = read<float>(weight.nested_map);
    view.nested_shift = shift_of(weight.nested_block_size, weight.nested_block_size + 1);
    view.nested_offset = weight.nested_offset;
  } else if (weight.code == WeightCode::kFp8) {
    view.tiles_per_row = weight.scales.size(1);
    view.block_shift = shift_of(weight.block_rows, weight.out_features);
    view.nested_shift = shift_of(weight.block_columns, weight.in_features);
  }
  return view;
}

void dequantize_one(const QuantizedWeight& weight, at::Tensor& out) {
  if (implementation_for(KernelName::kCast, out) != Implementation::kCpu) return dequantize_reference(weight, out);
  dispatch_dtype(out, [&]<class To>(ElementType<To>) { dequantize_cpu(view_of(weight), write_rows<To>(out)); });
}

/// Codes and scales of rows [begin, begin + count), both multiples of row_multiple, as views.
struct RowRange {
  at::Tensor codes, scales;
};
RowRange range_of(QuantizedWeight& weight, std::int64_t begin, std::int64_t count) {
  if (weight.code != WeightCode::k4Bit) {
    const std::int64_t per_scale = weight.code == WeightCode::kInt8 ? 1 : weight.block_rows;
    return {weight.codes.narrow(0, begin, count),
            weight.scales.narrow(0, begin / per_scale, ceil_div(count, per_scale))};
  }
  const std::int64_t first = begin * weight.in_features, size = count * weight.in_features;
  return {weight.codes.narrow(0, first / 2, (size + 1) / 2),
          weight.scales.narrow(0, first / weight.block_size, ceil_div(size, weight.block_size))};
}

constexpr auto kQuantizeRows = "quantize_rows";

void check_range(const at::Tensor& rows, std::int64_t begin, const QuantizedWeight& weight) {
  check_shape(kQuantizeRows, "rows", rows, {-1, weight.in_features});
  const std::int64_t multiple = row_multiple(weight), end = begin + rows.size(0);
  const bool is_last = end == weight.out_features;
  if (begin < 0 || end > weight.out_features || begin % multiple != 0 || (end % multiple != 0 && !is_last)) {
    throw ShapeError(kQuantizeRows, "rows {} to {} of {}, expected multiples of {}", begin, end, weight.out_features,
                     multiple);
  }
}

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
  if (weight.code == WeightCode::kInt8) return weight.codes.to(at::kFloat) * (weight.scales * kInt8Step).unsqueeze(1);
  if (weight.code == WeightCode::kFp8) {
    return weight.codes.to(at::kFloat) *
           spread(spread(weight.scales, weight.block_rows, 0, O), weight.block_columns, 1, D);
  }
  const at::Tensor pairs = at::stack({weight.codes.bitwise_right_shift(4), weight.codes.bitwise_and(15)}, 1);
  const at::Tensor values = weight.map.index_select(0, pairs.flatten().narrow(0, 0, O * D).to(at::kLong));
  return (values * spread(scales_of_blocks(weight), weight.block_size, 0, O * D)).view({O, D});
}

/// The thresholds of bitsandbytes' CUDA kernels, fp32 [15] on the CPU. A value on one belongs to the lower side.
at::Tensor nf4_thresholds() {
  const at::Tensor map = nf4_map();
  return (map.narrow(0, 0, 15) + map.narrow(0, 1, 15)) * 0.5;
}

/// [blocks, size], padded with zeros.
at::Tensor in_blocks(const at::Tensor& flat, std::int64_t size) {
  const std::int64_t num_blocks = (flat.size(0) + size - 1) / size;
  return at::constant_pad_nd(flat, {0, num_blocks * size - flat.size(0)}).view({num_blocks, size});
}

void quantize_4_bits(const at::Tensor& w, const QuantizedWeight& weight, RowRange& range) {
  const at::Tensor blocks = in_blocks(w.flatten(), weight.block_size), scales = at::amax(blocks.abs(), 1);
  const at::Tensor x = blocks * scales.clamp_min(1e-38).reciprocal().unsqueeze(1);
  const at::Tensor codes = at::bucketize(x, nf4_thresholds().to(w.device()));
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
  const at::Tensor ratio = largest / at::full({}, 448.0, largest.options());  // a GPU would multiply by the inverse of
                                                                              // a plain number
  range.scales.copy_(ratio.masked_fill(ratio == 0, 1.0));
  const at::Tensor x = w / spread(spread(range.scales, rows, 0, w.size(0)), columns, 1, w.size(1));
  range.codes.copy_(x.clamp(-448.0, 448.0).to(at::kFloat8_e4m3fn));
}

}  // namespace

std::int64_t bytes_of(const QuantizedWeight& weight) {
  std::int64_t bytes = 0;
  for (const auto& t : {weight.codes, weight.scales, weight.map, weight.nested_scales, weight.nested_map}) {
    if (t.defined()) bytes += bytes_of(t);
  }
  return bytes;
}

void check_quantized_weight(const QuantizedWeight& weight) {
  if (weight.code == WeightCode::k4Bit) return check_four_bits(weight);
  if (weight.code == WeightCode::kFp8) return check_fp8(weight);
  check_matrix("codes", weight.codes, {weight.out_features, weight.in_features}, at::kChar);
  check_vector(kDequantize, "scales", weight.scales, weight.out_features, at::kFloat);
}

void Dequantizations::add(const QuantizedWeight& weight, const at::Tensor& out) {
  check_quantized_weight(weight);
  check_rows(kDequantize, "out", out, {weight.out_features, weight.in_features});
  items_.push_back({weight, out});
  table_ = {};
}

void Dequantizations::add(const at::Tensor& from, double scale, const at::Tensor& to) {
  check_rows(kDequantize, "from", from, {-1, -1});
  check_rows(kDequantize, "to", to, from.sizes());
  check_floating(kDequantize, "from", from);
  check_floating(kDequantize, "to", to);
  items_.push_back({{}, to, from, scale});
  table_ = {};
}

void Dequantizations::make_table() {
  SegmentTableBuilder<DequantSegment> table;
  for (Item& item : items_) {
    dispatch_dtype(item.out, [&]<class To>(ElementType<To>) {
      if (item.plain.defined()) {
        dispatch_dtype(item.plain, [&]<class From>(ElementType<From>) {
          table.add(plain_segment(read_rows<From>(item.plain), static_cast<float>(item.scale), write_rows<To>(item.out),
                                  item.out.size(0), item.out.size(1), table.next_block()));
        });
        return;
      }
      table.add(dequant_segment(view_of(item.weight), write_rows<To>(item.out), table.next_block()));
    });
  }
  table_ = table.upload(items_.front().out.device());
}

void Dequantizations::run() {
  if (items_.empty()) return;
  const WorkScope recorded(kDequantize, WorkClass::kDecode, [&](Work& work) {
    for (const Item& item : items_) {
      if (item.plain.defined()) {
        work.reads("from", item.plain).writes("to", item.out);
        continue;
      }
      const QuantizedWeight& weight = item.weight;
      work.reads("codes", weight.codes).reads("scales", weight.scales).reads("nested scales", weight.nested_scales);
      work.writes("out", item.out);
    }
  });
  const at::Tensor& first = items_.front().out;
  if (first.is_meta()) return;
  const bool is_native = std::all_of(items_.begin(), items_.end(), [&](const Item& item) {
    return item.out.scalar_type() == first.scalar_type() &&
           implementation_for(KernelName::kCast, item.out) == Implementation::kCuda &&
           (!item.plain.defined() || implementation_for(KernelName::kCast, item.plain) == Implementation::kCuda);
  });
  if (!is_native) {
    for (Item& item : items_) {
      item.plain.defined() ? scaled_copy_reference(item.plain, item.scale, item.out)
                           : dequantize_one(item.weight, item.out);
    }
    return;
  }
  if (!table_.defined()) make_table();
  dispatch_dtype(first, [&]<class To>(ElementType<To>) {
    native_kernels_of<To>().dequantize(segments_of<DequantSegment>(table_),
                                       table_.segment_of_block.const_data_ptr<std::int32_t>(),
                                       table_.segment_of_block.size(0), native_stream());
  });
}

void dequantize(const QuantizedWeight& weight, at::Tensor& out) {
  Dequantizations one;
  one.add(weight, out);
  one.run();
}

at::Tensor nf4_map() {
  return at::tensor({-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                     -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
                     0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                     0.7229568362236023F, 1.0F},
                    at::kFloat);
}

at::Tensor dynamic_map(bool is_signed) {
  const DynamicMap& map = is_signed ? kSignedMap : kUnsignedMap;
  return at::tensor(at::ArrayRef<float>(map.values), at::kFloat);
}

QuantizedWeight make_quantized_weight(WeightCode code, std::int64_t out_features, std::int64_t in_features,
                                      const at::Device& device, const WeightBlocks& blocks) {
  QuantizedWeight weight;
  weight.code = code;
  weight.out_features = out_features;
  weight.in_features = in_features;
  weight.block_size = blocks.size;
  weight.block_rows = blocks.rows;
  weight.block_columns = blocks.columns;
  const auto empty = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(device).dtype(dtype));
  };
  if (code == WeightCode::k4Bit) {
    const std::int64_t count = out_features * in_features;
    weight.map = nf4_map().to(device);
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
      quantize_4_bits_cpu(read<T>(w), w.numel(), weight.block_size, nf4_thresholds().const_data_ptr<float>(),
                          write<std::uint8_t>(range.codes), scales);
    }
  });
}

bool are_scales_finite(const QuantizedWeight& weight) {
  return weight.scales.is_meta() || at::isfinite(weight.scales).all().item<bool>();
}

void finish_nested(QuantizedWeight& weight) {
  check_vector("finish_nested", "scales", weight.scales, -1, at::kFloat);
  const std::int64_t count = weight.scales.size(0), size = weight.nested_block_size, num_blocks = ceil_div(count, size);
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

void dequantize_reference(const QuantizedWeight& weight, at::Tensor& out) { out.copy_(values_of(weight)); }

void quantize_rows_reference(const at::Tensor& rows, std::int64_t begin, QuantizedWeight& weight) {
  RowRange range = range_of(weight, begin, rows.size(0));
  if (weight.code == WeightCode::kInt8) return quantize_int8(rows.to(at::kHalf).to(at::kFloat), range);
  const at::Tensor w = rows.to(at::kFloat);
  weight.code == WeightCode::kFp8 ? quantize_fp8(w, weight, range) : quantize_4_bits(w, weight, range);
}

}  // namespace lora_train::kernels
