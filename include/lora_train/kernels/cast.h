// Scaled copies between dtypes: writes adapters and weights from their fp32 masters.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// to = from * scale, multiplied in fp32 (fp64 for fp64) and then rounded to the dtype of `to`. from and to [R, C] or
/// [C], each fp32, bf16 or fp64; rows may be strided. They must not overlap.
void scaled_copy(const at::Tensor& from, double scale, at::Tensor& to);

void scaled_copy_reference(const at::Tensor& from, double scale, at::Tensor& to);

}  // namespace lora_train::kernels
