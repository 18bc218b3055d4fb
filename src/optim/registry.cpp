#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cast/cast.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/optimizer.h"

namespace lora_train::optim {
namespace {

int64_t num_codes(ParameterBlocks blocks) { return kernels::kMomentBlockSize * num_coded_blocks(blocks); }
int64_t num_fp32(ParameterBlocks blocks) { return kernels::kMomentBlockSize * num_fp32_blocks(blocks); }
int64_t table_bytes(ParameterBlocks blocks) {
  return static_cast<int64_t>(sizeof(kernels::MomentBlock)) * (num_coded_blocks(blocks) + num_fp32_blocks(blocks));
}

const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> kOptimizers = {
      {{OptimizerKind::kAdamwTorch, OptimizerKind::kAdamwTorchFused},
       {{"exp_avg"}, {"exp_avg_sq"}},
       [](auto& values, auto& grads, auto state, auto& options, auto blocks, auto& scalars) {
         adamw_step(values, grads, state[0], state[1], options, blocks, scalars);
       }},
      {{OptimizerKind::kAdamw8bit},
       {{"exp_avg_codes", at::kByte, num_codes},
        {"exp_avg_scales", at::kFloat, num_coded_blocks},
        {"exp_avg_sq_codes", at::kByte, num_codes},
        {"exp_avg_sq_scales", at::kFloat, num_coded_blocks},
        {"exp_avg", at::kFloat, num_fp32},
        {"exp_avg_sq", at::kFloat, num_fp32},
        {"blocks", at::kByte, table_bytes, moment_blocks}},
       [](auto& values, auto& grads, auto state, auto& options, auto blocks, auto& scalars) {
         adamw_8bit_step(values, grads, {state[0], state[1], state[2], state[3], state[4], state[5], state[6]}, options,
                         blocks, scalars);
       }},
  };
  return kOptimizers;
}

/// Not inlined: GCC 12 at -O3 merges two such calls into a vector and drops both conversions.
[[gnu::noinline]] double rounded_to_float(double value) { return static_cast<float>(value); }

}  // namespace

AdamWOptions adamw_options(const OptimizerSection& section) {
  AdamWOptions options{section.adam_beta1, section.adam_beta2, section.adam_epsilon, section.weight_decay};
  if (section.kind == OptimizerKind::kAdamw8bit) {
    options.beta1 = rounded_to_float(options.beta1);
    options.beta2 = rounded_to_float(options.beta2);
  }
  return options;
}

const Optimizer& optimizer_for(OptimizerKind kind) {
  for (const Optimizer& optimizer : optimizers()) {
    if (std::ranges::count(optimizer.kinds, kind) > 0) return optimizer;
  }
  throw ConfigError("optim", to_string(kind) + " is not built");
}

int64_t StateTensor::num_elements(ParameterBlocks blocks) const {
  if (size != nullptr) return size(blocks);
  return blocks.empty() ? 0 : blocks.back().begin + blocks.back().count;
}

int64_t Optimizer::state_bytes(ParameterBlocks blocks) const {
  int64_t bytes = 0;
  for (const StateTensor& tensor : state) {
    bytes += tensor.num_elements(blocks) * static_cast<int64_t>(c10::elementSize(tensor.dtype));
  }
  return bytes;
}

OptimizerState::OptimizerState(const Optimizer& row, ParameterBlocks blocks, at::Device device) : optimizer(&row) {
  for (const StateTensor& tensor : row.state) {
    const auto options = at::TensorOptions(tensor.dtype).device(device);
    tensors.push_back(tensor.constant != nullptr ? tensor.constant(blocks).to(device)
                                                 : at::zeros({tensor.num_elements(blocks)}, options));
  }
}

int64_t OptimizerState::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

OptimizerState OptimizerState::host_copy() const {
  OptimizerState copy = *this;
  for (at::Tensor& tensor : copy.tensors) tensor = kernels::host_copy(tensor);
  return copy;
}

void OptimizerState::copy_from(const OptimizerState& other) {
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(other.tensors[i]);
}

}  // namespace lora_train::optim
