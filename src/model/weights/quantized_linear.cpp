#include "quantized_linear.h"

#include <ATen/ATen.h>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/model/weights/tensor_io.h"

namespace lora_train::model {
namespace {

using kernels::QuantizedWeight;
using kernels::WeightCode;

constexpr std::int64_t kCodes4Bit = 16, kCodes8Bit = 256;

/// A small tensor of the files as fp32 of these sizes.
at::Tensor small_floats(const storage::WeightFiles& files, const storage::TensorEntry& entry, at::IntArrayRef sizes) {
  const at::Tensor values = at::empty(entry.shape, at::kFloat);
  copy_elements(entry, files.bytes(entry), files.where(entry), values);
  return values.view(sizes);
}

}  // namespace

WeightCode quantised_code(LinearFormat format) {
  switch (format) {
    case LinearFormat::k4Bit: return WeightCode::kNf4;  // a folder brings its own map
    case LinearFormat::kInt8: return WeightCode::kInt8;
    case LinearFormat::kFp8: return WeightCode::kFp8;
    case LinearFormat::kPlain: break;
  }
  throw ShapeError("quantised_code", "a plain linear has no codes");
}

QuantizedWeight empty_quantized_weight(const LinearStorage& storage, at::Device device) {
  const auto empty = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return at::empty(sizes, at::TensorOptions(type).device(device));
  };
  const std::int64_t O = storage.out_features, D = storage.in_features, num_scales = storage.num_scales();
  QuantizedWeight weight;
  weight.code = quantised_code(storage.format);
  weight.out_features = O;
  weight.in_features = D;
  switch (weight.code) {
    case WeightCode::kInt8:
      weight.codes = empty({O, D}, at::kChar);
      weight.scales = empty({O}, at::kFloat);
      return weight;
    case WeightCode::kFp8:
      weight.block_rows = storage.block_rows;
      weight.block_columns = storage.block_columns;
      weight.codes = empty({O, D}, at::kFloat8_e4m3fn);
      weight.scales = empty({ceil_div(O, storage.block_rows), ceil_div(D, storage.block_columns)}, at::kFloat);
      return weight;
    default: break;
  }
  weight.block_size = storage.block_size;
  weight.codes = empty({ceil_div(O * D, 2)}, at::kByte);
  weight.map = empty({kCodes4Bit}, at::kFloat);
  const bool nested = storage.nested_block_size > 0;
  weight.scales = empty({num_scales}, nested ? at::kByte : at::kFloat);
  if (!nested) return weight;
  weight.nested_block_size = storage.nested_block_size;
  weight.nested_scales = empty({ceil_div(num_scales, storage.nested_block_size)}, at::kFloat);
  weight.nested_map = empty({kCodes8Bit}, at::kFloat);
  return weight;
}

void fill_at_random(QuantizedWeight& weight, double std) {
  constexpr double kNf4Std = 0.55, kInt8Share = 0.58, kFp8Value = 1.0;  // of codes that are equally likely
  if (weight.codes.is_meta()) return;
  if (weight.code == WeightCode::kFp8) {
    weight.codes.copy_(at::randn(weight.codes.sizes(), weight.codes.options().dtype(at::kFloat)));
    weight.scales.fill_(std / kFp8Value);
    return;
  }
  weight.codes.random_(weight.code == WeightCode::kInt8 ? -127 : 0, weight.code == WeightCode::kInt8 ? 128 : 256);
  if (weight.code == WeightCode::kInt8) {
    weight.scales.fill_(std / kInt8Share);
    return;
  }
  weight.map.copy_(kernels::nf4_map());
  if (!weight.is_nested()) {
    weight.scales.fill_(std / kNf4Std);
    return;
  }
  weight.scales.zero_();
  weight.nested_map.copy_(kernels::dynamic_map(true));
  weight.nested_scales.zero_();
  weight.nested_offset = static_cast<float>(std / kNf4Std);
}

void read_quantized(const storage::WeightFiles& files, const StoredLinear& stored, at::Device device,
                    WeightReader& reader, QuantizedWeight& weight) {
  weight = empty_quantized_weight(stored, device);
  // Codes of 4 bits may be stored as elements of any dtype (bnb_4bit_quant_storage).
  const at::ScalarType type = scalar_type(stored.weight->dtype, files.where(*stored.weight));
  reader.add(stored.weight->name, weight.codes.view(type).view(stored.weight->shape));
  if (stored.format != LinearFormat::k4Bit) {
    weight.scales.copy_(small_floats(files, *stored.scales, weight.scales.sizes()));
    return;
  }
  reader.add(stored.scales->name, weight.scales.view(stored.scales->shape));
  weight.map.copy_(small_floats(files, *stored.map, weight.map.sizes()));
  if (!weight.is_nested()) return;
  weight.nested_scales.copy_(small_floats(files, *stored.nested_scales, weight.nested_scales.sizes()));
  weight.nested_map.copy_(small_floats(files, *stored.nested_map, weight.nested_map.sizes()));
  weight.nested_offset = stored.nested_offset;
}

std::vector<float> decode_linear(const StoredLinear& linear, const storage::WeightFiles& weights) {
  QuantizedWeight quantized;
  WeightReader reader(weights, at::kCPU);
  read_quantized(weights, linear, at::kCPU, reader, quantized);
  reader.read();
  std::vector<float> values(static_cast<std::size_t>(linear.out_features * linear.in_features));
  at::Tensor out = at::from_blob(values.data(), {linear.out_features, linear.in_features}, at::kFloat);
  kernels::dequantize(quantized, out);
  return values;
}

void QuantizeSink::finish() {
  if (!kernels::are_scales_finite(weight_)) {
    throw FormatError(where_,
                      "holds NaN or infinity (for int8, or a value beyond F16): the base model is damaged, download "
                      "it again");
  }
  if (nested_) kernels::finish_nested(weight_);
}

void QuantizedLayer::run() {
  kernels::run_or_capture([this] { decode.run(); });
}

}  // namespace lora_train::model
