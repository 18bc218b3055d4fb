#include "lora_train/kernels/quantized_weight/quantized_weight.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "dispatch/segment_table_builder.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/cast/cast.h"
#include "quantized_weight_cpu.h"
#include "quantized_weight_cuda.h"
#include "weight_view.h"

namespace lora_train::kernels {
namespace {

constexpr auto kDequantize = "dequantize";

void check_block(const char* name, std::int64_t size, bool fits) {
  if (fits) return;
  throw ShapeError(std::string(kDequantize) + ": " + name, std::to_string(size) + ", expected a power of 2");
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

/// The pointers of a weight that check_quantized_weight has passed.
WeightView view_of(const QuantizedWeight& weight) {
  WeightView view{};
  view.code = weight.code;
  view.num_rows = weight.out_features;
  view.width = weight.in_features;
  view.codes = weight.codes.const_data_ptr();
  view.scales = weight.scales.const_data_ptr();
  if (has_4_bits(weight.code)) {
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

}  // namespace

std::int64_t bytes_of(const QuantizedWeight& weight) {
  std::int64_t bytes = 0;
  for (const auto& t : {weight.codes, weight.scales, weight.map, weight.nested_scales, weight.nested_map}) {
    if (t.defined()) bytes += bytes_of(t);
  }
  return bytes;
}

void check_quantized_weight(const QuantizedWeight& weight) {
  if (has_4_bits(weight.code)) return check_four_bits(weight);
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

}  // namespace lora_train::kernels
