// The table of optimizers (src/optim/registry.cpp) and their state.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <span>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/kernels/adamw/adamw.h"
#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

/// A flat state tensor of an optimizer: zero before step 1, unless it is constant.
struct StateTensor {
  std::string name;  ///< in checkpoints
  at::ScalarType dtype = at::kFloat;
  int64_t (*size)(ParameterBlocks blocks) = nullptr;  ///< its number of elements; null: one per parameter
  at::Tensor (*constant)(ParameterBlocks blocks) =
      nullptr;  ///< its values, on the CPU, if no step changes them; not in checkpoints
  int64_t num_elements(ParameterBlocks blocks) const;
};

/// One step over flat buffers, with the contract of adamw_step (optim/adamw.h). `state` is in the order of
/// Optimizer::state.
using UpdateFunction = void (*)(at::Tensor& values, const at::Tensor& grads, std::span<at::Tensor> state,
                                const AdamWOptions& options, ParameterBlocks blocks, at::Tensor& scalars);

struct Optimizer {
  std::vector<OptimizerKind> kinds;  ///< values of `optim` that select this optimizer
  std::vector<StateTensor> state;
  UpdateFunction update;

  int64_t state_bytes(ParameterBlocks blocks) const;
};

/// For adamw_8bit the betas are rounded to fp32, as bitsandbytes rounds them.
AdamWOptions adamw_options(const OptimizerSection& section);

/// The row that `kind` selects. Throws ConfigError if there is none.
const Optimizer& optimizer_for(OptimizerKind kind);

/// The state of an optimizer after its last step. Holds no step number: the scalars carry the bias corrections. Copies
/// share the tensors. Not thread-safe.
struct OptimizerState {
  OptimizerState(const Optimizer& optimizer, ParameterBlocks blocks, at::Device device);

  void update(at::Tensor& values, const at::Tensor& grads, const AdamWOptions& options, ParameterBlocks blocks,
              at::Tensor& scalars) {
    optimizer->update(values, grads, tensors, options, blocks, scalars);
  }
  int64_t bytes() const;
  /// A copy in host memory (kernels/cast/cast.h).
  OptimizerState host_copy() const;
  /// Copies a state of the same optimizer and size, from any device.
  void copy_from(const OptimizerState& other);

  const Optimizer* optimizer;
  std::vector<at::Tensor> tensors;  ///< flat, one per entry of optimizer->state
};

}  // namespace lora_train::optim
