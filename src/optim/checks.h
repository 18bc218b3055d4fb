// Checks of the buffers that the optimizer works on. A failure is a bug in lora-train.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::optim {

/// Throws ShapeError, naming `where`, unless scalars is fp64 [kNumStepScalars], contiguous, on the device of `buffer`,
/// and buffer is flat and contiguous, fp32 or fp64.
void check_step_buffers(const char* where, const at::Tensor& buffer, const at::Tensor& scalars);

/// Throws ShapeError, naming `where`, unless the blocks cover [0, n) without gaps or overlaps.
void check_blocks(const char* where, std::span<const kernels::ParameterBlock> blocks, int64_t n);

}  // namespace lora_train::optim
