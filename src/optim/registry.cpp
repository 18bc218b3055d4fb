#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/kernels/host_copy.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/optimizer.h"

namespace lora_train::optim {
namespace {

void update_adamw(at::Tensor& values, const at::Tensor& grads, std::span<at::Tensor> state, const AdamWOptions& options,
                  std::span<const kernels::ParameterBlock> blocks, const at::Tensor& scalars) {
  adamw_step(values, grads, state[0], state[1], options, blocks, scalars);
}

const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> kOptimizers = {
      {{OptimizerKind::kAdamwTorch, OptimizerKind::kAdamwTorchFused}, {{"exp_avg"}, {"exp_avg_sq"}}, update_adamw},
  };
  return kOptimizers;
}

}  // namespace

AdamWOptions adamw_options(const OptimizerSection& section) {
  return {section.adam_beta1, section.adam_beta2, section.adam_epsilon, section.weight_decay};
}

const Optimizer& optimizer_for(OptimizerKind kind) {
  for (const Optimizer& optimizer : optimizers()) {
    if (std::find(optimizer.kinds.begin(), optimizer.kinds.end(), kind) != optimizer.kinds.end()) return optimizer;
  }
  throw ConfigError("optim", to_string(kind) + " is not built");
}

int64_t StateTensor::size(int64_t num_parameters) const {
  return (num_parameters + parameters_per_element - 1) / parameters_per_element;
}

int64_t Optimizer::state_bytes(int64_t num_parameters) const {
  int64_t bytes = 0;
  for (const StateTensor& tensor : state) {
    bytes += tensor.size(num_parameters) * static_cast<int64_t>(c10::elementSize(tensor.dtype));
  }
  return bytes;
}

OptimizerState::OptimizerState(const Optimizer& row, int64_t num_parameters, at::Device device) : optimizer(&row) {
  for (const StateTensor& tensor : row.state) {
    tensors.push_back(at::zeros({tensor.size(num_parameters)}, at::TensorOptions(tensor.dtype).device(device)));
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
