// Keeps the order of operations of torch's single-tensor AdamW and contracts nothing (-ffp-contract=off): the same bits
// on every CPU.
#include "adamw_cpu.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "lora_train/kernels/launch/parallel.h"
#include "lora_train/kernels/quantized_weight/codes.h"

namespace lora_train::optim {

LORA_TRAIN_CLONES void adamw_range_cpu(float* params, const float* grads, float* exp_avg, float* exp_avg_sq,
                                       std::int64_t n, const kernels::AdamWFactors& factors) {
  const kernels::AdamWFactors f = factors;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grads[i] * f.grad_scale;
    const float m = exp_avg[i] + f.one_minus_beta1 * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * f.beta2 + f.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v) / f.correction2_sqrt + f.epsilon;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    params[i] = params[i] * f.decay + f.minus_step_size * m / denominator;
  }
}

namespace {

constexpr int kSize = kernels::kMomentBlockSize;

// Inlined, so that they are cloned with their caller.
#define LORA_TRAIN_IN_CLONES [[gnu::always_inline]] inline

LORA_TRAIN_IN_CLONES void decode(const std::uint8_t* codes, float scale, const kernels::DynamicMap& map,
                                 float* values) {
#pragma omp simd
  for (int i = 0; i < kSize; ++i) values[i] = map.values[codes[i]] * scale;
}

/// Writes the codes and returns the scale, the largest magnitude. Adds to num_zeroed the values above 0 with code 0.
LORA_TRAIN_IN_CLONES float encode(const float* values, const kernels::DynamicMap& map, std::uint8_t* codes,
                                  int& num_zeroed) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < kSize; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float inverse = std::min(1.0F / largest, FLT_MAX);  // finite: zeros get the code of 0
  int zeroed = 0;
#pragma omp simd reduction(+ : zeroed)
  for (int i = 0; i < kSize; ++i) {
    const float x = values[i] * inverse;
    int code = 0;
    for (int step = 128; step > 0; step /= 2) code += x > map.thresholds[code + step - 1] ? step : 0;
    code -= values[i] < 0 && code == 127 ? 1 : 0;  // a negative moment stays negative
    zeroed += values[i] > 0 && code == 0 ? 1 : 0;
    codes[i] = static_cast<std::uint8_t>(code);
  }
  num_zeroed += zeroed;
  return largest;
}

LORA_TRAIN_IN_CLONES void update(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, int count,
                                 const kernels::AdamW8bitFactors& f) {
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    const float g = grads[i] * f.grad_scale;
    const float v = exp_avg_sq[i] * f.beta2 + f.one_minus_beta2 * g * g;
    const float m = exp_avg[i] * f.beta1 + f.one_minus_beta1 * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    params[i] = (params[i] + f.step_size * (m / (std::sqrt(v) + f.epsilon))) * f.decay;
  }
}

}  // namespace

LORA_TRAIN_CLONES std::int64_t adamw_8bit_blocks_cpu(const kernels::AdamW8bitBuffers& b,
                                                     const kernels::AdamW8bitFactors* groups, std::int64_t first,
                                                     std::int64_t last) {
  int num_zeroed = 0, of_exp_avg = 0;
  for (std::int64_t index = first; index < last; ++index) {
    const kernels::MomentBlock block = b.blocks[index];
    float *params = b.params + block.begin, m[kSize], v[kSize];
    const float* grads = b.grads + block.begin;
    if (index >= b.num_coded) {
      const std::int64_t state = (index - b.num_coded) * kSize;
      update(params, grads, b.exp_avg + state, b.exp_avg_sq + state, block.count, groups[block.group]);
      continue;
    }
    const std::int64_t state = index * kSize;
    decode(b.exp_avg_codes + state, b.exp_avg_scales[index], kernels::kSignedMap, m);
    decode(b.exp_avg_sq_codes + state, b.exp_avg_sq_scales[index], kernels::kUnsignedMap, v);
    update(params, grads, m, v, block.count, groups[block.group]);
    b.exp_avg_scales[index] = encode(m, kernels::kSignedMap, b.exp_avg_codes + state, of_exp_avg);
    b.exp_avg_sq_scales[index] = encode(v, kernels::kUnsignedMap, b.exp_avg_sq_codes + state, num_zeroed);
  }
  return num_zeroed;
}

}  // namespace lora_train::optim
