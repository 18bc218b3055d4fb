#include "lora_train/model/weights/tensor_io.h"

#include <cstring>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::model {
namespace {

using storage::DType;

/// True when no exponent is all ones. Plain loops: the saving thread must not wake LibTorch's pool, which is training.
template <typename Bits>
bool has_no_full_exponent(std::string_view bytes, Bits exponent) {
  bool finite = true;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
    Bits value;
    std::memcpy(&value, bytes.data() + i, sizeof value);
    finite = finite & ((value & exponent) != exponent);
  }
  return finite;
}

bool is_finite(std::string_view bytes, at::ScalarType type) {
  if (type == at::kFloat) return has_no_full_exponent<std::uint32_t>(bytes, 0x7F800000U);
  return has_no_full_exponent<std::uint16_t>(bytes, type == at::kHalf ? 0x7C00U : 0x7F80U);
}

constexpr std::pair<DType, at::ScalarType> kTypes[] = {{DType::kF32, at::kFloat},
                                                       {DType::kF16, at::kHalf},
                                                       {DType::kBF16, at::kBFloat16},
                                                       {DType::kF64, at::kDouble},
                                                       {DType::kF8E4M3, at::kFloat8_e4m3fn},
                                                       {DType::kF8E8M0, at::kFloat8_e8m0fnu},
                                                       {DType::kI32, at::kInt},
                                                       {DType::kI64, at::kLong},
                                                       {DType::kU8, at::kByte},
                                                       {DType::kI8, at::kChar},
                                                       {DType::kBool, at::kBool}};

}  // namespace

at::ScalarType scalar_type(DType dtype, const std::string& where) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw FormatError(where, "has dtype {}, which is not supported; expected F32, F16 or BF16",
                    storage::dtype_name(dtype));
}

DType storage_dtype(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw ShapeError(at::toString(type), "is not a dtype that we write");
}

void copy_elements(const storage::TensorEntry& entry, std::string_view bytes, const std::string& where,
                   at::Tensor target) {
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

void require_finite_weights(DType dtype, std::string_view bytes, const std::string& where) {
  if (!storage::is_weight_dtype(dtype) || is_finite(bytes, scalar_type(dtype, where))) return;
  throw FormatError(where, "holds NaN or infinity: the base model is damaged; download it again");
}

storage::TensorToWrite tensor_to_write(std::string name, const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) throw ShapeError(name, "is not contiguous");
  return {std::move(name),
          storage_dtype(tensor.scalar_type()),
          tensor.sizes().vec(),
          {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()},
          {}};
}

storage::TensorToWrite finite_tensor_to_write(std::string name, const at::Tensor& tensor) {
  storage::TensorToWrite out = tensor_to_write(std::move(name), tensor);
  out.produce = [name = out.name, bytes = out.bytes, type = tensor.scalar_type(), tensor] {
    if (!is_finite(bytes, type)) {
      throw NumericError(name, "holds NaN or infinity, so it is not saved");
    }
    return bytes;
  };
  return out;
}

std::vector<storage::TensorToWrite> values_to_write(const Trainables& parameters, at::ScalarType type) {
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& parameter : parameters.list()) {
    tensors.push_back(finite_tensor_to_write(parameter.name, parameters.value(parameter.name).to(type)));
  }
  return tensors;
}

}  // namespace lora_train::model
