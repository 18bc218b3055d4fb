// AdamW with 8-bit moments: what its kernels for CPU and GPU share. Module optim has the checks, the CPU code and the reference
// (optim/adamw_8bit.h). No torch.
#pragma once

#include <cstdint>

#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::kernels {

/// Elements that share a scale.
constexpr std::int64_t kMomentBlockSize = 256;

/// Up to 256 elements of one tensor; blocks restart at each tensor. In a table of them, those with coded moments come first.
/// The moments of block i begin at element 256 i of the codes, or 256 (i - num_coded) of the fp32 moments.
struct MomentBlock {
  std::int64_t begin;  ///< first element in the flat buffers of parameters and gradients
  std::int32_t count;  ///< 1 to 256
  std::int32_t group;  ///< index in AdamW8bitGroups
};

/// What tensors may differ in.
struct AdamW8bitGroups {
  static constexpr int kMax = 8;
  int count = 0;
  double lr_factor[kMax] = {}, weight_decay[kMax] = {};
};

/// What one step has in common for all elements of a group, rounded to fp32. Parameters are multiplied by `decay` last.
struct AdamW8bitFactors {
  float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, step_size, decay;
};

/// Flat buffers. Those of moments hold whole blocks and are aligned to 16 bytes.
struct AdamW8bitBuffers {
  float* params;
  const float* grads;
  std::uint8_t *exp_avg_codes, *exp_avg_sq_codes;  ///< [256 num_coded], of kSignedMap and kUnsignedMap (dynamic_map.h)
  float *exp_avg_scales, *exp_avg_sq_scales;       ///< [num_coded]
  float *exp_avg, *exp_avg_sq;                     ///< [256 (num_blocks - num_coded)]
  const MomentBlock* blocks;                       ///< [num_blocks]
  std::int64_t num_coded, num_blocks;
};

/// Contract: adamw_8bit_step in module optim. num_moments: second moments that are kept as codes. Call it only after
/// implementation_for returned kCuda.
void native_adamw_8bit_step(const AdamW8bitBuffers& buffers, const AdamW8bitGroups& groups, const AdamWOptions& options,
                            std::int64_t num_moments, at::Tensor& scalars);

}  // namespace lora_train::kernels
