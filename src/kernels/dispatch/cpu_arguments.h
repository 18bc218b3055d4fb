// Turns tensors into the arguments of CPU kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "launch/rows.h"
#include "launch/vector_math.h"

namespace lora_train::kernels {

template <class T>
struct ElementType {};

/// Calls run(ElementType<float>()) for an fp32 tensor, run(ElementType<Bf16>()) for a bf16 one.
template <class Run>
void dispatch_dtype(const at::Tensor& t, const Run& run) {
  t.scalar_type() == at::kFloat ? run(ElementType<float>()) : run(ElementType<Bf16>());
}

/// Null, and rows without data, for an undefined tensor.
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

}  // namespace lora_train::kernels
