// Tensors for tests: reproducible values, strided rows, central differences.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lora_train/kernels/aten.h"

namespace lora_train::testing_support {

/// Uniform in [-1, 1), the same for the same seed; fp32 on the CPU unless told.
inline at::Tensor uniform(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(seed);
  return at::rand(sizes, at::kDouble).mul_(2).sub_(1).to(dtype);
}

/// A copy in fp64 on the CPU.
inline at::Tensor f64(const at::Tensor& t) {
  return t.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

/// 8 elements after rows that are a multiple of 8 wide, else 3.
inline int64_t row_gap(const at::Tensor& t) {
  int64_t row = 1;
  for (int64_t d = 1; d < t.dim(); ++d) row *= t.size(d);
  return row % 8 == 0 ? 8 : 3;
}

/// The same values, but row_gap() elements lie between the rows, all NaN.
inline at::Tensor with_row_gaps(const at::Tensor& t) {
  const int64_t gap = row_gap(t);
  int64_t row = 1;
  std::vector<int64_t> strides(static_cast<std::size_t>(t.dim()), 1);
  for (int64_t d = t.dim() - 1; d >= 1; --d) {
    strides[static_cast<std::size_t>(d)] = row;
    row *= t.size(d);
  }
  strides[0] = row + gap;
  auto buffer = at::full({t.size(0) * (row + gap)}, std::numeric_limits<double>::quiet_NaN(), t.options());
  auto view = buffer.as_strided(t.sizes(), strides);
  view.copy_(t);
  return view;
}

/// True when nothing between the rows of a tensor made by with_row_gaps was written.
inline bool gaps_are_untouched(const at::Tensor& t) {
  const int64_t gap = row_gap(t), row = t.stride(0) - gap;
  const auto gaps = t.as_strided({t.size(0), gap}, {t.stride(0), 1}, t.storage_offset() + row);
  return gaps.to(at::kFloat).isnan().all().item<bool>();
}

/// Gradient of `loss` (a function of the fp64 tensor `at_values`, contiguous) by central differences.
inline at::Tensor central_differences(const std::function<double(const at::Tensor&)>& loss, const at::Tensor& at_values,
                                      double step = 1e-5) {
  auto values = at_values.clone();
  auto gradient = at::zeros_like(values);
  auto* x = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double saved = x[i];
    x[i] = saved + step;
    const double above = loss(values);
    x[i] = saved - step;
    const double below = loss(values);
    x[i] = saved;
    gradient.mutable_data_ptr<double>()[i] = (above - below) / (2 * step);
  }
  return gradient;
}

/// Central differences in fp64 with step 1e-5 are good to about 1e-10 / 1e-5 in rounding and 1e-10 in truncation.
constexpr double kDifferenceTolerance = 1e-7;

}  // namespace lora_train::testing_support
