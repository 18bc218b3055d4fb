// Argument checks for all kernels. A failure is a bug in lora-train, so the message names kernel, tensor and both shapes.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// Throws ShapeError unless t has these sizes; -1 matches any size.
void check_shape(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes);

/// check_shape, and every dimension after the first must be contiguous (rows may be strided).
void check_rows(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes);

/// check_rows and check_dtype.
void check_rows(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes, at::ScalarType dtype);

/// The same for a contiguous vector.
void check_vector(const char* kernel, const char* name, const at::Tensor& t, int64_t size, at::ScalarType dtype);

void check_dtype(const char* kernel, const char* name, const at::Tensor& t, at::ScalarType dtype);

/// fp32, bf16 or fp64.
void check_floating(const char* kernel, const char* name, const at::Tensor& t);

void check_contiguous(const char* kernel, const char* name, const at::Tensor& t);

/// Whether bf16 values stand beside fp32 ones, where a kernel takes both: they are widened.
inline bool is_widened(const at::Tensor& values, const at::Tensor& beside) {
  return values.scalar_type() == at::kBFloat16 && beside.scalar_type() == at::kFloat;
}

/// The dtype a kernel computes in: fp32 for bf16, else that of t.
inline at::ScalarType math_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor to_math(const at::Tensor& t) { return t.to(math_dtype(t)); }

}  // namespace lora_train::kernels
