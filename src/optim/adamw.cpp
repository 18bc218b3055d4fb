#include "lora_train/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "adamw_cpu.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/parallel.h"

namespace lora_train::optim {
namespace {

constexpr int64_t kGrain = 16384;

}  // namespace

void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, int64_t step,
                double learning_rate, const AdamWOptions& options, int64_t num_decayed, double grad_scale) {
  const auto n = params.numel();
  for (const at::Tensor* t : {&std::as_const(params), &grads, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    if (t->dim() != 1 || t->numel() != n || !t->is_contiguous() || t->scalar_type() != params.scalar_type()) {
      throw ShapeError("adamw_step", "all four buffers must be [" + std::to_string(n) + "], contiguous, of one dtype");
    }
  }
  if (step < 1 || num_decayed < 0 || num_decayed > n) {
    throw ShapeError("adamw_step", "step must be 1 or more, num_decayed in [0, " + std::to_string(n) + "]");
  }
  if (!params.is_cpu() || params.scalar_type() != at::kFloat) {
    return adamw_step_reference(params, grads, exp_avg, exp_avg_sq, step, learning_rate, options, num_decayed,
                                grad_scale);
  }
  const double correction1 = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  const AdamWFactors factors{static_cast<float>(grad_scale),
                             static_cast<float>(1.0 - options.beta1),
                             static_cast<float>(options.beta2),
                             static_cast<float>(1.0 - options.beta2),
                             static_cast<float>(std::sqrt(correction2)),
                             static_cast<float>(options.epsilon),
                             static_cast<float>(-learning_rate / correction1)};
  const auto decay = static_cast<float>(1.0 - learning_rate * options.weight_decay);
  auto* p = params.mutable_data_ptr<float>();
  const auto* g = grads.const_data_ptr<float>();
  auto* m = exp_avg.mutable_data_ptr<float>();
  auto* v = exp_avg_sq.mutable_data_ptr<float>();
  const auto update = [&](int64_t begin, int64_t end, float factor) {
    adamw_range_cpu(p + begin, g + begin, m + begin, v + begin, end - begin, factor, factors);
  };
  kernels::parallel_ranges(n, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t middle = std::clamp(num_decayed, begin, end);
    update(begin, middle, decay);
    update(middle, end, 1.0F);
  });
}

}  // namespace lora_train::optim
