#include "lora_train/kernels/quantized_weight.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/work_record.h"
#include "quantized_weight_cpu.h"
#include "quantized_weight_cuda.h"
#include "weight_view_of.h"

namespace lora_train::kernels {
namespace {

constexpr auto kDequantize = "dequantize";

std::int64_t ceil_divide(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

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
  check_vector(kDequantize, "codes", weight.codes, ceil_divide(count, 2), at::kByte);
  check_vector(kDequantize, "map", weight.map, 16, at::kFloat);
  const std::int64_t num_scales = ceil_divide(count, weight.block_size);
  check_vector(kDequantize, "scales", weight.scales, num_scales, weight.is_nested() ? at::kByte : at::kFloat);
  if (!weight.is_nested()) return;
  check_block("nested_block_size", weight.nested_block_size, is_power_of_2(weight.nested_block_size));
  check_vector(kDequantize, "nested_scales", weight.nested_scales, ceil_divide(num_scales, weight.nested_block_size),
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
  check_matrix(
      "scales", weight.scales,
      {ceil_divide(weight.out_features, weight.block_rows), ceil_divide(weight.in_features, weight.block_columns)},
      at::kFloat);
}

std::int32_t shift_of(std::int64_t size, std::int64_t whole) {
  return size >= whole ? kWholeShift : std::countr_zero(static_cast<std::uint64_t>(size));
}

template <class To>
void add_segment(const WeightView& weight, at::Tensor& out, std::vector<DequantSegment>& segments,
                 std::vector<std::int32_t>& segment_of_block) {
  segments.push_back(dequant_segment(weight, write_rows<To>(out), std::ssize(segment_of_block)));
  segment_of_block.insert(segment_of_block.end(), static_cast<std::size_t>(num_blocks(segments.back())),
                          static_cast<std::int32_t>(segments.size() - 1));
}

void dequantize_one(const QuantizedWeight& weight, at::Tensor& out) {
  if (implementation_for(KernelName::kCast, out) != Implementation::kCpu) return dequantize_reference(weight, out);
  dispatch_dtype(out, [&]<class To>(ElementType<To>) { dequantize_cpu(view_of(weight), write_rows<To>(out)); });
}

}  // namespace

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
  segments_.reset();
}

void Dequantizations::make_table() {
  std::vector<DequantSegment> segments;
  std::vector<std::int32_t> segment_of_block;
  for (Item& item : items_) {
    dispatch_dtype(item.out, [&]<class To>(ElementType<To>) {
      add_segment<To>(view_of(item.weight), item.out, segments, segment_of_block);
    });
  }
  const auto upload = [&](void* data, std::int64_t count, at::ScalarType type) {
    return at::from_blob(data, {count}, type).clone().to(items_.front().out.device());
  };
  segments_ = upload(segments.data(), static_cast<std::int64_t>(segments.size() * sizeof(DequantSegment)), at::kByte);
  segment_of_block_ = upload(segment_of_block.data(), std::ssize(segment_of_block), at::kInt);
}

void Dequantizations::run() {
  if (items_.empty()) return;
  const WorkScope recorded(kDequantize, WorkClass::kCopy, [&](Work& work) {
    for (const Item& item : items_) {
      const QuantizedWeight& weight = item.weight;
      work.reads("codes", weight.codes).reads("scales", weight.scales).reads("nested scales", weight.nested_scales);
      work.writes("out", item.out);
    }
  });
  const at::Tensor& first = items_.front().out;
  if (first.is_meta()) return;
  const bool is_native = std::all_of(items_.begin(), items_.end(), [&](const Item& item) {
    return item.out.scalar_type() == first.scalar_type() &&
           implementation_for(KernelName::kCast, item.out) == Implementation::kCuda;
  });
  if (!is_native) {
    for (Item& item : items_) dequantize_one(item.weight, item.out);
    return;
  }
  if (!segments_.defined()) make_table();
  dispatch_dtype(first, [&]<class To>(ElementType<To>) {
    native_kernels_of<To>().dequantize(reinterpret_cast<const DequantSegment*>(segments_.const_data_ptr()),
                                       segment_of_block_.const_data_ptr<std::int32_t>(), segment_of_block_.size(0),
                                       native_stream());
  });
}

void dequantize(const QuantizedWeight& weight, at::Tensor& out) {
  Dequantizations one;
  one.add(weight, out);
  one.run();
}

}  // namespace lora_train::kernels
