#include "lora_train/planner/host_plan.h"

#include <ATen/ATen.h>

#include "lora_train/optim/optimizer.h"

namespace lora_train::planner {
namespace {

// Measured with a model of 0.1 M parameters (bench/plan_accuracy.py): 68 MiB of pages of LibTorch's files, 13 of ours and of the
// system's libraries, 55 of tables that LibTorch's operators fill as they register, and stacks.
constexpr std::int64_t kProgramBytes = std::int64_t{138} << 20;

/// Outputs and gradients of the longest document, which LibTorch allocates in each call.
std::int64_t cpu_attention_bytes(const MemoryCase& requested) {
  const model::ModelConfig& config = requested.config;
  const std::int64_t element_bytes = runtime::compute_bytes(requested.profile.model.precision);
  return 4 * requested.max_seq_len * config.num_heads * config.head_dim * element_bytes;
}

}  // namespace

HostPlan plan_host(const MemoryCase& requested) {
  const model::ModelShape shape = model::model_shape(requested.config, requested.adapters, requested.columns);
  const model::Trainables parameters =
      model::make_trainables(requested.config, shape, runtime::trained_weights(requested.profile), at::kMeta);
  HostPlan plan{plan_memory(requested)};
  plan.run.attention = cpu_attention_bytes(requested);
  plan.run.workspaces = 0;
  plan.checkpoint_copy = plan.run.parameters - parameters.size() * static_cast<std::int64_t>(sizeof(float));
  plan.program = kProgramBytes;
  return plan;
}

}  // namespace lora_train::planner
