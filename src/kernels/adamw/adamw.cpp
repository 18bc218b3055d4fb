#include "lora_train/kernels/adamw/adamw.h"

#include <ATen/core/Tensor.h>

#include "dispatch/arguments.h"

namespace lora_train::kernels {

void native_measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars) {
  static_assert(sizeof(double) == 2 * sizeof(float));
  auto* partials = reinterpret_cast<double*>(native_workspace(2 * num_norm_partials(grads.numel())));
  native_kernels().measure_gradients(read<float>(grads), grads.numel(), max_norm, partials, write<double>(scalars),
                                     native_stream());
}

void native_adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                       const AdamWOptions& options, std::span<const ParameterBlock> blocks, const at::Tensor& scalars) {
  float *p = write<float>(params), *m = write<float>(exp_avg), *v = write<float>(exp_avg_sq);
  const float* g = read<float>(grads);
  for (const ParameterBlock& block : blocks) {
    AdamWOptions of_block = options;
    if (!block.decays) of_block.weight_decay = 0;
    native_kernels().adamw_step(p + block.begin, g + block.begin, m + block.begin, v + block.begin, block.count,
                                of_block, block.lr_factor, read<double>(scalars), native_stream());
  }
}

void native_adamw_8bit_step(const AdamW8bitBuffers& buffers, const AdamW8bitGroups& groups, const AdamWOptions& options,
                            std::int64_t num_moments, at::Tensor& scalars) {
  auto* zeroed = reinterpret_cast<double*>(native_workspace(2 * num_adamw_8bit_partials(buffers.num_blocks)));
  native_kernels().adamw_8bit_step(buffers, groups, options, num_moments, zeroed, write<double>(scalars),
                                   native_stream());
}

}  // namespace lora_train::kernels
