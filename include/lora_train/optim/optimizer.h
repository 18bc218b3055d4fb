// The table of optimizers (src/optim/registry.cpp), and their state.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <span>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/kernels/parameter_block.h"
#include "lora_train/optim/step_scalars.h"

namespace lora_train::optim {

/// A flat state tensor of an optimizer: zero before step 1.
struct StateTensor {
  std::string name;  ///< in checkpoints
  at::ScalarType dtype = at::kFloat;
  int64_t parameters_per_element =
      1;  ///< above 1: one element serves this many parameters (scales of quantised moments)
  int64_t size(int64_t num_parameters) const;
};

/// One step over flat buffers, with the contract of adamw_step (optim/adamw.h). `state` is in the order of Optimizer::state.
using UpdateFunction = void (*)(at::Tensor& values, const at::Tensor& grads, std::span<at::Tensor> state,
                                const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                                const at::Tensor& scalars);

struct Optimizer {
  std::vector<OptimizerKind> kinds;  ///< values of `optim` that select this optimizer
  std::vector<StateTensor> state;
  UpdateFunction update;

  int64_t state_bytes(int64_t num_parameters) const;
};

AdamWOptions adamw_options(const OptimizerSection& section);

/// The row that `kind` selects. Throws ConfigError if there is none.
const Optimizer& optimizer_for(OptimizerKind kind);

/// The state of an optimizer after its last step. Holds no step number: the scalars bring the bias corrections. Copies share the
/// tensors. Not thread-safe.
struct OptimizerState {
  OptimizerState(const Optimizer& optimizer, int64_t num_parameters, at::Device device);

  void update(at::Tensor& values, const at::Tensor& grads, const AdamWOptions& options,
              std::span<const kernels::ParameterBlock> blocks, const at::Tensor& scalars) {
    optimizer->update(values, grads, tensors, options, blocks, scalars);
  }
  int64_t bytes() const;
  /// A copy in host memory (kernels/host_copy.h).
  OptimizerState host_copy() const;
  /// Copies from a state of the same optimizer and size, on any device.
  void copy_from(const OptimizerState& other);

  const Optimizer* optimizer;
  std::vector<at::Tensor> tensors;  ///< flat, one per entry of optimizer->state
};

}  // namespace lora_train::optim
