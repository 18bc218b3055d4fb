#include "lora_train/optim/grad_clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/kernels/parallel.h"

namespace lora_train::optim {
namespace {

constexpr int64_t kChunk = 1 << 16;
constexpr int64_t kLanes = 16;  // independent sums, so that the compiler may use vectors without reordering a sum

double sum_of_squares(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double value = x[i + j];
      lanes[j] += value * value;
    }
  }
  for (; i < n; ++i) {
    const double value = x[i];
    lanes[i % kLanes] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

}  // namespace

double grad_norm(const at::Tensor& grads) {
  if (grads.dim() != 1 || !grads.is_contiguous() || grads.scalar_type() != at::kFloat) {
    throw ShapeError("grad_norm: grads", "must be one flat contiguous fp32 buffer");
  }
  if (!grads.is_cpu()) {
    return at::linalg_vector_norm(grads, 2, std::nullopt, /*keepdim=*/false, at::kDouble).item<double>();
  }
  const int64_t n = grads.numel();
  const auto* x = grads.const_data_ptr<float>();
  std::vector<double> sums(static_cast<std::size_t>((n + kChunk - 1) / kChunk));
  kernels::parallel_ranges(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      sums[static_cast<std::size_t>(c)] = sum_of_squares(x + c * kChunk, std::min(kChunk, n - c * kChunk));
    }
  });
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return std::sqrt(total);
}

double clip_factor(double norm, double max_norm) {
  return max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace lora_train::optim
