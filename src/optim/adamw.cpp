#include "lora_train/optim/adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "adamw_cpu.h"
#include "checks.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::optim {
namespace {

constexpr int64_t kGrain = 16384;

kernels::AdamWFactors factors_of(const AdamWOptions& options, const kernels::ParameterBlock& block,
                                 const double* scalars) {
  const double learning_rate = scalars[kLearningRate] * block.lr_factor;
  return {static_cast<float>(scalars[kClipFactor]),
          static_cast<float>(1.0 - options.beta1),
          static_cast<float>(options.beta2),
          static_cast<float>(1.0 - options.beta2),
          static_cast<float>(std::sqrt(scalars[kBeta2Correction])),
          static_cast<float>(options.epsilon),
          static_cast<float>(-learning_rate / scalars[kBeta1Correction]),
          block.decays ? static_cast<float>(1.0 - learning_rate * options.weight_decay) : 1.0F};
}

}  // namespace

void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                const AdamWOptions& options, std::span<const kernels::ParameterBlock> tensors,
                const at::Tensor& scalars) {
  check_step_buffers("adamw_step", params, scalars);
  const auto n = params.numel();
  for (const at::Tensor* t : {&grads, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    if (t->dim() != 1 || t->numel() != n || !t->is_contiguous() || t->scalar_type() != params.scalar_type()) {
      throw ShapeError("adamw_step", "all four buffers must be [" + std::to_string(n) + "], contiguous, of one dtype");
    }
  }
  check_blocks("adamw_step", tensors, n);
  const std::vector<kernels::ParameterBlock> blocks = kernels::merged(tensors);
  const kernels::WorkScope recorded("adamw_step", kernels::WorkClass::kOptimizer, [&](kernels::Work& work) {
    work.updates("params", params).reads("grads", grads).updates("exp_avg", exp_avg).updates("exp_avg_sq", exp_avg_sq);
    work.launches(std::ssize(blocks));
  });
  if (params.is_meta()) return;
  switch (kernels::implementation_for(KernelName::kAdamw, params)) {
    case kernels::Implementation::kReference:
      return adamw_step_reference(params, grads, exp_avg, exp_avg_sq, options, blocks, scalars);
    case kernels::Implementation::kCuda:
      return kernels::native_adamw_step(params, grads, exp_avg, exp_avg_sq, options, blocks, scalars);
    case kernels::Implementation::kCpu: break;
  }
  const double* s = scalars.const_data_ptr<double>();
  if (s[kNonFinite] != 0) return;
  auto* p = params.mutable_data_ptr<float>();
  const auto* g = grads.const_data_ptr<float>();
  auto* m = exp_avg.mutable_data_ptr<float>();
  auto* v = exp_avg_sq.mutable_data_ptr<float>();
  kernels::parallel_ranges(n, kGrain, [&](int64_t begin, int64_t end) {
    for (const kernels::ParameterBlock& block : blocks) {
      const int64_t first = std::max(begin, block.begin), last = std::min(end, block.begin + block.count);
      if (first >= last) continue;
      adamw_range_cpu(p + first, g + first, m + first, v + first, last - first, factors_of(options, block, s));
    }
  });
}

void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                          const at::Tensor& scalars) {
  const auto is_stopped = scalars[kNonFinite] != 0;
  for (const kernels::ParameterBlock& block : blocks) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, block.begin, block.count); };
    const at::Tensor old_p = part(params), old_m = part(exp_avg), old_v = part(exp_avg_sq);
    const auto learning_rate = scalars[kLearningRate] * block.lr_factor;
    const auto g = part(grads) * scalars[kClipFactor];
    auto p = block.decays ? old_p * (1.0 - learning_rate * options.weight_decay) : old_p.clone();
    const auto m = old_m.lerp(g, 1.0 - options.beta1);
    const auto v = (old_v * options.beta2).addcmul_(g, g, 1.0 - options.beta2);
    const auto denominator = v.sqrt().div_(scalars[kBeta2Correction].sqrt()).add_(options.epsilon);
    p.add_((m * (-learning_rate / scalars[kBeta1Correction])).div_(denominator));
    old_p.copy_(at::where(is_stopped, old_p, p));
    old_m.copy_(at::where(is_stopped, old_m, m));
    old_v.copy_(at::where(is_stopped, old_v, v));
  }
}

}  // namespace lora_train::optim
