// The one table of numeric tolerances, and the comparison that uses it.
#pragma once

#include <gtest/gtest.h>

#include <sstream>

#include "lora_train/kernels/aten.h"

namespace lora_train::testing_support {

/// Relative tolerance per dtype: |got - reference| / |reference| per tensor; single elements may differ by 4 times that
/// share of the largest one.
inline double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return 1e-10;
    case at::kFloat: return 1e-5;
    case at::kBFloat16: return 1e-2;
    default: throw std::invalid_argument("no tolerance for this dtype");
  }
}

/// Fast fp32 CPU kernels against fp64: their own exp and sums are good to this.
constexpr double kTightFloatTolerance = 1e-6;

/// A reference of norm zero fails: nothing would be tested (all-zero gradients pass any absolute tolerance).
inline ::testing::AssertionResult is_close(const at::Tensor& got, const at::Tensor& reference, double tolerance) {
  if (got.sizes() != reference.sizes()) {
    return ::testing::AssertionFailure() << "shapes differ: "
                                         << (std::ostringstream() << got.sizes() << " and " << reference.sizes()).str();
  }
  const auto want = reference.to(at::kCPU, at::kDouble), difference = got.to(at::kCPU, at::kDouble) - want;
  const double norm = want.norm().item<double>(), error = difference.norm().item<double>();
  if (!(norm > 0)) {
    return ::testing::AssertionFailure() << "the reference has norm " << norm << ": nothing is tested";
  }
  const double largest = want.abs().max().item<double>(), worst = difference.abs().max().item<double>();
  if (error <= tolerance * norm && worst <= 4 * tolerance * largest) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "relative error " << error / norm << ", largest element off by "
                                       << worst / largest << " of the largest; tolerance " << tolerance;
}

#define EXPECT_CLOSE(got, reference, tolerance) \
  EXPECT_TRUE(::lora_train::testing_support::is_close(got, reference, tolerance))

}  // namespace lora_train::testing_support
