// Arguments of kernels: checks, whose failure is a bug in lora-train, so the message names kernel, tensor and both
// shapes; and conversions of tensors to the arguments of native kernels, on a CPU and on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "launch/elements.h"
#include "launch/sequence_ranges.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "native_kernels.h"

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

/// fp32, bf16 or fp64; and check_rows.
void check_floating(const char* kernel, const char* name, const at::Tensor& t);
void check_floating(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes);

struct NamedTensor {
  const char* name;
  const at::Tensor& tensor;
};
/// check_rows and check_dtype of each: shape and dtype of x.
void check_like(const char* kernel, const at::Tensor& x, std::initializer_list<NamedTensor> tensors);

void check_contiguous(const char* kernel, const char* name, const at::Tensor& t);

/// Ascending numbers from 0 to at most num_tokens.
void check_lengths(const char* kernel, const char* name, const std::vector<int64_t>& cu_seqlens, int64_t num_tokens);

struct Sequences;
/// The lists on the host, and the shape of the states' rows. Lists on a GPU are checked where they are read.
void check_sequences(const char* kernel, const Sequences& sequences, std::int64_t num_tokens);
/// Checked sequences as arguments of a CPU kernel, and of a CUDA kernel, whose list is checked here.
HostRanges host_ranges(const Sequences& sequences, std::int64_t num_tokens);
DeviceRanges device_ranges(const char* kernel, const Sequences& sequences, std::int64_t num_tokens);

/// True if bf16 values must be widened because they meet fp32 ones, in a kernel that takes both.
inline bool is_widened(const at::Tensor& values, const at::Tensor& beside) {
  return values.scalar_type() == at::kBFloat16 && beside.scalar_type() == at::kFloat;
}

/// The dtype a kernel computes in: fp32 for bf16, else that of t.
inline at::ScalarType math_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor to_math(const at::Tensor& t) { return t.to(math_dtype(t)); }

template <class T>
struct ElementType {};

/// Calls run(ElementType<float>()) for an fp32 tensor, run(ElementType<Bf16>()) for a bf16 one.
template <class Run>
void dispatch_dtype(const at::Tensor& t, const Run& run) {
  t.scalar_type() == at::kFloat ? run(ElementType<float>()) : run(ElementType<Bf16>());
}

/// Runs a kernel for tensors like x: reference(), or native(ElementType<T>(), implementation); for meta tensors, nothing.
template <class Reference, class Native>
void run_kernel(KernelName kernel, const at::Tensor& x, const Reference& reference, const Native& native) {
  if (x.is_meta()) return;
  const Implementation how = implementation_for(kernel, x);
  if (how == Implementation::kReference) return reference();
  dispatch_dtype(x, [&](auto type) { native(type, how); });
}

/// Null, or rows without data, for an undefined tensor.
template <class T>
const T* read(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}

template <class T>
T* write(at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

template <class T>
Rows<const T> read_rows(const at::Tensor& t) {
  return {read<T>(t), t.defined() ? t.stride(0) : 0};
}

template <class T>
Rows<T> write_rows(at::Tensor& t) {
  return {write<T>(t), t.stride(0)};
}

/// The kernel table in use. Call only after implementation_for returned kCuda.
const NativeKernels& native_kernels();
Stream native_stream();

/// `num_elements` uninitialised floats on the device of the kernels in use, aligned to 16 bytes. All kernels share the
/// buffer (reserve_native_workspace).
float* native_workspace(std::int64_t num_elements);

template <class T>
const NativeKernelsOf<T>& native_kernels_of() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return native_kernels().f32;
  } else {
    return native_kernels().bf16;
  }
}

/// Calls cpu(arguments...) or, in stream order, a kernel of T from the table in use.
template <class T, class Cpu, class Cuda, class... Arguments>
void run_native(Implementation how, Cpu cpu, Cuda NativeKernelsOf<T>::*cuda, Arguments... arguments) {
  if (how == Implementation::kCpu) return cpu(arguments...);
  (native_kernels_of<T>().*cuda)(arguments..., native_stream());
}

}  // namespace lora_train::kernels
