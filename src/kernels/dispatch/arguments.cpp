#include "arguments.h"

#include <sstream>

#include "lora_train/base/error.h"

namespace lora_train::kernels {
namespace {

[[noreturn]] void fail(const char* kernel, const char* name, const at::Tensor& t, const std::string& expected) {
  std::ostringstream is;
  if (t.defined()) {
    is << "is " << t.scalar_type() << " " << t.sizes() << " with strides " << t.strides();
  } else {
    is << "is undefined";
  }
  throw ShapeError(fmt::format("{}: {}", kernel, name), "{}, expected {}", is.str(), expected);
}

}  // namespace

void check_shape(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
  bool ok = t.defined() && t.dim() == static_cast<int64_t>(sizes.size());
  for (std::size_t i = 0; ok && i < sizes.size(); ++i) {
    ok = sizes[i] < 0 || t.size(static_cast<int64_t>(i)) == sizes[i];
  }
  if (!ok) {
    std::ostringstream expected;
    expected << "shape " << sizes << " (-1 = any)";
    fail(kernel, name, t, expected.str());
  }
}

void check_rows(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
  check_shape(kernel, name, t, sizes);
  int64_t stride = 1;
  for (int64_t d = t.dim() - 1; d >= 1; --d) {
    if (t.size(d) > 1 && t.stride(d) != stride) fail(kernel, name, t, "contiguous rows");
    stride *= t.size(d);
  }
}

void check_rows(const char* kernel, const char* name, const at::Tensor& t, at::IntArrayRef sizes,
                at::ScalarType dtype) {
  check_rows(kernel, name, t, sizes);
  check_dtype(kernel, name, t, dtype);
}

void check_vector(const char* kernel, const char* name, const at::Tensor& t, int64_t size, at::ScalarType dtype) {
  check_rows(kernel, name, t, {size}, dtype);
  check_contiguous(kernel, name, t);
}

void check_dtype(const char* kernel, const char* name, const at::Tensor& t, at::ScalarType dtype) {
  if (!t.defined() || t.scalar_type() != dtype) {
    fail(kernel, name, t, std::string("dtype ") + c10::toString(dtype));
  }
}

void check_floating(const char* kernel, const char* name, const at::Tensor& t) {
  const bool ok = t.defined() &&
                  (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kDouble);
  if (!ok) fail(kernel, name, t, "fp32, bf16 or fp64");
}

void check_contiguous(const char* kernel, const char* name, const at::Tensor& t) {
  if (!t.is_contiguous()) fail(kernel, name, t, "contiguous memory");
}

}  // namespace lora_train::kernels
