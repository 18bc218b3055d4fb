// Optimizers, one row each (src/optim/registry.cpp), and the state that an optimizer keeps.
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

/// A flat tensor that an optimizer keeps for the parameters: zero before step 1.
struct StateTensor {
  std::string name;  ///< in checkpoints
  at::ScalarType dtype = at::kFloat;
  int64_t parameters_per_element =
      1;  ///< above 1: one element serves this many parameters (scales of quantised moments)
  int64_t size(int64_t num_parameters) const;
};

/// One step over flat buffers, contract as adamw_step (optim/adamw.h); `state` in the order of the row.
using UpdateFunction = void (*)(at::Tensor& values, const at::Tensor& grads, std::span<at::Tensor> state,
                                const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                                const at::Tensor& scalars);

struct Optimizer {
  std::vector<OptimizerKind> kinds;  ///< values of `optim` that mean this optimizer
  std::vector<StateTensor> state;
  UpdateFunction update;

  int64_t state_bytes(int64_t num_parameters) const;
};

AdamWOptions adamw_options(const OptimizerSection& section);

/// Throws ConfigError if there is none.
const Optimizer& optimizer_for(OptimizerKind kind);

/// The state of an optimizer after its last step. It holds no step number: bias corrections come with the scalars. Copies share
/// the tensors. Not thread-safe.
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
  std::vector<at::Tensor> tensors;  ///< flat, those of optimizer->state
};

}  // namespace lora_train::optim
