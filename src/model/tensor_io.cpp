#include "lora_train/model/tensor_io.h"

#include <ATen/ATen.h>

#include <cstring>

#include "lora_train/base/error.h"

namespace lora_train::model {

using storage::DType;

at::ScalarType scalar_type(DType dtype, const std::string& where) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    case DType::kF64: return at::kDouble;
    case DType::kI32: return at::kInt;
    case DType::kI64: return at::kLong;
    case DType::kU8: return at::kByte;
    case DType::kI8: return at::kChar;
    case DType::kBool: return at::kBool;
    default: break;
  }
  throw FormatError(where, "has dtype " + std::string(storage::dtype_name(dtype)) +
                               ", which is not supported; expected F32, F16 or BF16");
}

DType storage_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::kF32;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    case at::kDouble: return DType::kF64;
    case at::kInt: return DType::kI32;
    case at::kLong: return DType::kI64;
    case at::kByte: return DType::kU8;
    default: break;
  }
  throw ShapeError(at::toString(type), "is not a dtype that we write");
}

void copy_elements(const storage::TensorEntry& entry, std::string_view bytes, const std::string& where, at::Tensor target) {
  const at::ScalarType type = scalar_type(entry.dtype, where);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  if (address % c10::elementSize(type) == 0) {
    target.copy_(at::from_blob(const_cast<char*>(bytes.data()), entry.shape, at::TensorOptions(type)));
    return;
  }
  const at::Tensor aligned = at::empty(entry.shape, at::TensorOptions(type));
  std::memcpy(aligned.data_ptr(), bytes.data(), bytes.size());
  target.copy_(aligned);
}

storage::TensorToWrite tensor_to_write(std::string name, const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) throw ShapeError(name, "is not contiguous");
  storage::TensorToWrite out;
  out.name = std::move(name);
  out.dtype = storage_dtype(tensor.scalar_type());
  out.shape = tensor.sizes().vec();
  out.bytes = {static_cast<const char*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
  return out;
}

void write_values(const std::filesystem::path& path, const Parameters& parameters, at::ScalarType type) {
  std::vector<at::Tensor> values;
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& parameter : parameters.list()) {
    values.push_back(parameters.value(parameter.name).to(type));
    if (!at::isfinite(values.back()).all().item<bool>()) {
      throw NumericError(parameter.name,
                         "holds NaN or infinity and is not saved; the last checkpoint before is intact");
    }
    tensors.push_back(tensor_to_write(parameter.name, values.back()));
  }
  storage::write_safetensors(path, tensors);
}

}  // namespace lora_train::model
