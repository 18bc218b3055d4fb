#include "checks.h"

#include "lora_train/base/error.h"
#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

void check_step_buffers(const char* where, const at::Tensor& buffer, const at::Tensor& scalars) {
  const bool is_floating = buffer.scalar_type() == at::kFloat || buffer.scalar_type() == at::kDouble;
  if (buffer.dim() != 1 || !buffer.is_contiguous() || !is_floating) {
    throw ShapeError(where, "every buffer must be flat and contiguous, fp32 or fp64");
  }
  if (scalars.dim() != 1 || scalars.size(0) != kNumStepScalars || !scalars.is_contiguous() ||
      scalars.scalar_type() != at::kDouble || (scalars.device() != buffer.device() && !buffer.is_meta())) {
    throw ShapeError(where, "the scalars must be fp64 [{}], contiguous, on the device of the buffers", kNumStepScalars);
  }
}

void check_blocks(const char* where, std::span<const kernels::ParameterBlock> blocks, int64_t n) {
  int64_t end = 0;
  for (const kernels::ParameterBlock& block : blocks) {
    if (block.begin != end || block.count < 0)
      throw ShapeError(where, "every block must start at the end of the previous one");
    end += block.count;
  }
  if (end != n) throw ShapeError(where, "the blocks must cover all {} elements", n);
}

}  // namespace lora_train::optim
