// AdamW, with moments in fp32 or 8 bits: the trained tensors as ranges of flat buffers, the scalars of a step, in
// device memory, and the native CUDA kernels. Module optim has the checks, the CPU code and the references, and is the
// only caller of the functions below. No torch.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/kernels/launch/parallel.h"

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// A tensor: elements [begin, begin + count).
struct ParameterBlock {
  std::int64_t begin = 0, count = 0;
  double lr_factor = 1.0;     ///< above 0; multiplies the learning rate and thereby the weight decay
  bool decays = true;         ///< true if weight decay applies
  bool is_embedding = false;  ///< keeps fp32 state even with 8-bit moments
  bool operator==(const ParameterBlock&) const = default;
};

/// Joins neighbours with the same lr_factor and `decays`.
inline std::vector<ParameterBlock> merged(std::span<const ParameterBlock> blocks) {
  std::vector<ParameterBlock> all;
  for (const ParameterBlock& block : blocks) {
    if (!all.empty() && all.back().lr_factor == block.lr_factor && all.back().decays == block.decays) {
      all.back().count += block.count;
    } else {
      all.push_back(block);
    }
  }
  return all;
}

/// Indices into the fp64 tensor of a step's scalars (optim/adamw.h).
enum StepScalar : std::int64_t {
  kLossSum,          ///< weighted sum of the token losses so far in this step
  kLossDenominator,  ///< sum of the weights of the step's supervised tokens
  kLearningRate,
  kBeta1Correction,  ///< 1 - beta1^step
  kBeta2Correction,  ///< 1 - beta2^step
  kGradNorm,         ///< before clipping
  kClipFactor,       ///< multiplies the gradients
  kNonFinite,        ///< sticky: 1 once a loss sum or norm was not finite, else 0
  kZeroedMoments,    ///< adamw_8bit: the share of 8-bit second moments above 0 that got the code of 0
  kNumStepScalars
};

struct AdamWOptions {
  double beta1, beta2, epsilon, weight_decay;
};

/// Factors of one step, common to all elements of a block, computed in fp64 and rounded to fp32 as PyTorch rounds its
/// scalars. Parameters are multiplied by `decay` first.
struct AdamWFactors {
  float grad_scale, one_minus_beta1, beta2, one_minus_beta2, correction2_sqrt, epsilon, minus_step_size, decay;
};

/// A product that is rounded before anything is added to it: nvcc would contract the two.
LORA_TRAIN_INLINE double rounded_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

LORA_TRAIN_INLINE AdamWFactors adamw_factors(const AdamWOptions& o, double lr_factor, double weight_decay,
                                             const double* scalars) {
  const double learning_rate = rounded_product(scalars[kLearningRate], lr_factor);
  return {static_cast<float>(scalars[kClipFactor]),
          static_cast<float>(1.0 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1.0 - o.beta2),
          static_cast<float>(std::sqrt(scalars[kBeta2Correction])),
          static_cast<float>(o.epsilon),
          static_cast<float>(-learning_rate / scalars[kBeta1Correction]),
          static_cast<float>(1.0 - rounded_product(learning_rate, weight_decay))};
}

/// Contracts: measure_gradients and adamw_step in module optim. Call them only after implementation_for returned kCuda.
void native_measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars);
void native_adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                       const AdamWOptions& options, std::span<const ParameterBlock> blocks, const at::Tensor& scalars);

// 8-bit moments: the parts that CPU and GPU kernels share.

/// Number of elements that share a scale.
constexpr std::int64_t kMomentBlockSize = 256;

/// Up to 256 elements of one tensor; blocks restart at each tensor. In a table of them, those with coded moments come
/// first. The moments of block i begin at element 256 i of the codes, or 256 (i - num_coded) of the fp32 moments.
struct MomentBlock {
  std::int64_t begin;  ///< first element in the flat buffers of parameters and gradients
  std::int32_t count;  ///< 1 to 256
  std::int32_t group;  ///< index in AdamW8bitGroups
};

/// Settings in which tensors may differ.
struct AdamW8bitGroups {
  static constexpr int kMax = 8;
  int count = 0;
  double lr_factor[kMax] = {}, weight_decay[kMax] = {};
};

/// Factors of one step, common to all elements of a group, rounded to fp32. Parameters are multiplied by `decay` last.
struct AdamW8bitFactors {
  float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, step_size, decay;
};

LORA_TRAIN_INLINE AdamW8bitFactors adamw_8bit_factors(const AdamWOptions& o, double lr_factor, double weight_decay,
                                                      const double* scalars) {
  const double learning_rate = rounded_product(scalars[kLearningRate], lr_factor);
  const double correction2_sqrt = std::sqrt(scalars[kBeta2Correction]);
  return {static_cast<float>(scalars[kClipFactor]),
          static_cast<float>(o.beta1),
          static_cast<float>(1.0 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1.0 - o.beta2),
          static_cast<float>(rounded_product(correction2_sqrt, o.epsilon)),
          static_cast<float>(rounded_product(-learning_rate, correction2_sqrt) / scalars[kBeta1Correction]),
          static_cast<float>(1.0 - rounded_product(learning_rate, weight_decay))};
}

/// Flat buffers. Moment buffers hold whole blocks and are aligned to 16 bytes.
struct AdamW8bitBuffers {
  float* params;
  const float* grads;
  std::uint8_t *exp_avg_codes, *exp_avg_sq_codes;  ///< [256 num_coded], from kSignedMap and kUnsignedMap (codes.h)
  float *exp_avg_scales, *exp_avg_sq_scales;       ///< [num_coded]
  float *exp_avg, *exp_avg_sq;                     ///< [256 (num_blocks - num_coded)]
  const MomentBlock* blocks;                       ///< [num_blocks]
  std::int64_t num_coded, num_blocks;
};

/// Contract: adamw_8bit_step in module optim. num_moments: second moments kept as codes. Call it only after
/// implementation_for returned kCuda.
void native_adamw_8bit_step(const AdamW8bitBuffers& buffers, const AdamW8bitGroups& groups, const AdamWOptions& options,
                            std::int64_t num_moments, at::Tensor& scalars);

}  // namespace lora_train::kernels
