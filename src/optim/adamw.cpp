#include "lora_train/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "adamw_cpu.h"
#include "checks.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/implementation.h"
#include "lora_train/kernels/parallel.h"
#include "lora_train/kernels/work_record.h"

namespace lora_train::optim {
namespace {

constexpr int64_t kGrain = 16384;

/// The blocks lie side by side in [0, n) and leave nothing out.
void check_blocks(std::span<const kernels::ParameterBlock> blocks, int64_t n) {
  int64_t end = 0;
  for (const kernels::ParameterBlock& block : blocks) {
    if (block.begin != end || block.count < 0)
      throw ShapeError("adamw_step", "every block must begin where the one before ends");
    end += block.count;
  }
  if (end != n) throw ShapeError("adamw_step", "the blocks must cover all " + std::to_string(n) + " elements");
}

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
                const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                const at::Tensor& scalars) {
  check_step_buffers("adamw_step", params, scalars);
  const auto n = params.numel();
  for (const at::Tensor* t : {&grads, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    if (t->dim() != 1 || t->numel() != n || !t->is_contiguous() || t->scalar_type() != params.scalar_type()) {
      throw ShapeError("adamw_step", "all four buffers must be [" + std::to_string(n) + "], contiguous, of one dtype");
    }
  }
  check_blocks(blocks, n);
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

}  // namespace lora_train::optim
