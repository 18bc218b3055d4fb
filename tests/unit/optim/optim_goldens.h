// Values of torch.optim.AdamW, bitsandbytes, clip_grad_norm_ and transformers' get_scheduler (scripts/make_goldens.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

struct AdamWGolden {
  double weight_decay, beta2, epsilon, learning_rate, grad_scale;
  std::vector<kernels::ParameterBlock> blocks;
  std::vector<double> start;
  std::vector<std::vector<double>> grads, params;  ///< per step
  std::vector<double> exp_avg, exp_avg_sq;         ///< after the last
};

struct ScheduleGolden {
  std::string type;
  std::int64_t warmup_steps, total_steps;
  double min_lr_ratio;
  std::vector<double> rates;  ///< of step 1, 2, ...
};

struct ClipGolden {
  std::vector<double> grads;
  double max_norm, norm;
  std::vector<double> clipped;
};

/// Three tensors after 20 steps of bitsandbytes' CUDA rule (tests/parity/adamw_8bit_port.py), and one after 5 steps of its
/// kernel for CPUs. Values in fp32 are every 29th; codes are in hexadecimal digits.
struct AdamW8bitGolden {
  std::vector<double> params;
  std::string exp_avg_codes;
  std::vector<double> exp_avg_scales;
  std::string exp_avg_sq_codes;
  std::vector<double> exp_avg_sq_scales, exp_avg, exp_avg_sq;
  double num_zeroed;
  std::vector<double> even_params;
};

#include "goldens/optim.inc"
#include "lora_train/kernels/aten.h"

/// The scalars of a step, as training and clipping leave them to the optimizer.
inline at::Tensor scalars_for(int64_t step, double learning_rate, const AdamWOptions& options, double clip_factor) {
  auto scalars = at::zeros({kNumStepScalars}, at::kDouble);
  const auto first = first_scalars(step, 1, learning_rate, options);
  std::copy(first.begin(), first.end(), scalars.mutable_data_ptr<double>());
  scalars[kClipFactor] = clip_factor;
  return scalars;
}

}  // namespace lora_train::optim
