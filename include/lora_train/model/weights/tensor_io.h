// Conversions between safetensors entries and at::Tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "lora_train/model/weights/trainables.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::model {

/// at::ScalarType of F32, F16, BF16, F8_E4M3, F8_E8M0, F64, I32, I64, U8, I8, BOOL. Throws FormatError (where) for any
/// other.
at::ScalarType scalar_type(storage::DType dtype, const std::string& where);
storage::DType storage_dtype(at::ScalarType type);

/// Copies packed elements (any alignment) into `target`, converting the dtype. `target` has the entry's shape and any
/// strides.
void copy_elements(const storage::TensorEntry& entry, std::string_view bytes, const std::string& where,
                   at::Tensor target);

/// Throws FormatError (where) if weights in F32, F16 or BF16 hold NaN or infinity; other dtypes pass.
void require_finite_weights(storage::DType dtype, std::string_view bytes, const std::string& where);

/// A tensor to write. It must be contiguous, on the CPU, and outlive the write.
storage::TensorToWrite tensor_to_write(std::string name, const at::Tensor& tensor);

/// The same for fp32 or bf16, checked while it is written: for NaN or infinity, the write throws NumericError naming
/// the tensor.
storage::TensorToWrite finite_tensor_to_write(std::string name, const at::Tensor& tensor);

/// All values under the names of their parameters, to be written as `type` (fp32 or bf16). bf16 makes a copy.
std::vector<storage::TensorToWrite> values_to_write(const Trainables& parameters, at::ScalarType type);

}  // namespace lora_train::model
