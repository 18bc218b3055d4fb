#include "lora_train/optim/grad_clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "checks.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::optim {
namespace {

constexpr int64_t kChunk = 1 << 16;
constexpr int64_t kLanes = 16;  // independent sums, so that the compiler can vectorise without reordering a sum

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

double norm_of(const at::Tensor& grads) {
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

}  // namespace

void measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars) {
  check_step_buffers("measure_gradients", grads, scalars);
  const kernels::WorkScope recorded("measure_gradients", kernels::WorkClass::kOptimizer,
                                    [&](kernels::Work& work) { work.reads("grads", grads).launches(2); });
  if (grads.is_meta()) return;
  switch (kernels::implementation_for(KernelName::kAdamw, grads)) {
    case kernels::Implementation::kReference: return measure_gradients_reference(grads, max_norm, scalars);
    case kernels::Implementation::kCuda: return kernels::native_measure_gradients(grads, max_norm, scalars);
    case kernels::Implementation::kCpu: break;
  }
  const double norm = norm_of(grads);
  auto* s = scalars.mutable_data_ptr<double>();
  s[kGradNorm] = norm;
  s[kClipFactor] = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
  if (!std::isfinite(norm) || !std::isfinite(s[kLossSum])) s[kNonFinite] = 1;
}

void measure_gradients_reference(const at::Tensor& grads, double max_norm, at::Tensor& scalars) {
  const at::Tensor norm = at::linalg_vector_norm(grads, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
  scalars[kGradNorm].copy_(norm);
  if (max_norm == 0) {
    scalars[kClipFactor].fill_(1.0);
  } else {
    scalars[kClipFactor].copy_((norm + 1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0));
  }
  const at::Tensor is_finite = norm.isfinite().logical_and(scalars[kLossSum].isfinite());
  scalars[kNonFinite].masked_fill_(is_finite.logical_not(), 1.0);
}

}  // namespace lora_train::optim
