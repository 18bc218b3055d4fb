// quantization-probe: test-only. Quantises matrices, row by row as a model is loaded, and decodes them again.
//   quantization-probe IN.safetensors OUT.safetensors
// IN: matrices F32, BF16 or F16 [O, D] named FORMAT/ANYTHING; a format is nf4, nf4-nested, int8 or fp8.
// OUT: NAME.codes U8, NAME.scales, NAME.decoded F32 [O, D], and of nested ones NAME.nested_scales, NAME.offset [1].

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/storage/safetensors.h"
#include "support/safetensors_file.h"

namespace lora_train {
namespace {

using kernels::WeightCode;

/// In as many ranges of rows as may be, at most 7.
void quantize(const at::Tensor& w, kernels::QuantizedWeight& weight) {
  const int64_t multiple = kernels::row_multiple(weight), O = w.size(0);
  const int64_t step = std::max((O / 7 + multiple - 1) / multiple, int64_t{1}) * multiple;
  for (int64_t begin = 0; begin < O; begin += step) {
    kernels::quantize_rows(w.narrow(0, begin, std::min(step, O - begin)), begin, weight);
  }
}

void run(const char* in, const char* out) {
  const std::map<std::string, WeightCode> codes = {
      {"nf4", WeightCode::k4Bit}, {"int8", WeightCode::kInt8}, {"fp8", WeightCode::kFp8}};
  const storage::SafetensorsFile file(in);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : file.tensors()) {
    at::Tensor w = at::empty(entry.shape, model::scalar_type(entry.dtype, entry.name));
    model::copy_elements(entry, file.bytes(entry), entry.name, w);
    const std::string format = entry.name.substr(0, entry.name.find('/'));
    auto weight =
        kernels::make_quantized_weight(codes.at(format.substr(0, format.find('-'))), w.size(0), w.size(1), at::kCPU);
    quantize(w, weight);
    if (format.ends_with("-nested")) {
      kernels::finish_nested(weight);
      tensors[entry.name + ".nested_scales"] = weight.nested_scales;
      tensors[entry.name + ".offset"] = at::tensor({weight.nested_offset}, at::kFloat);
    }
    at::Tensor& decoded = tensors[entry.name + ".decoded"] = at::empty(w.sizes(), at::kFloat);
    kernels::dequantize(weight, decoded);
    tensors[entry.name + ".codes"] = weight.codes.view(at::kByte);
    tensors[entry.name + ".scales"] = weight.scales;
  }
  std::vector<storage::TensorToWrite> written;
  for (const auto& [name, tensor] : tensors) written.push_back(model::tensor_to_write(name, tensor));
  storage::write_safetensors(out, written);
}

}  // namespace
}  // namespace lora_train

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("quantization-probe IN.safetensors OUT.safetensors");
    lora_train::run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
