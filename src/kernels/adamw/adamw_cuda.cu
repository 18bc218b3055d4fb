// Memory traffic: the norm reads 4 bytes of a parameter; the update reads 16 (parameter, gradient, both moments) and
// writes 12. Sums are fp64, in an order that depends only on n. Every rounding of the update is explicit, so no
// multiplication and addition are contracted: the bits match optim/adamw_cpu.cpp.
#include <algorithm>
#include <cmath>

#include "adamw_kernels.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kMaxBlocks = 2048;  // for the update; each computes the factors first

template <int kSize>
__global__ void __launch_bounds__(kThreads) sum_squares_kernel(const float* grads, std::int64_t n, double* partials) {
  LORA_TRAIN_SHARED(double, slots, 32);
  double sum = 0;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x, packs = n / kSize;
  const auto add = [&](float value) { sum += static_cast<double>(value) * static_cast<double>(value); };
  for (std::int64_t p = first; p < packs; p += step) {
    const Pack<float, kSize> pack = load_pack<kSize>(grads + p * kSize);
    for (int i = 0; i < kSize; ++i) add(pack.values[i]);
  }
  if (packs * kSize + first < n) add(grads[packs * kSize + first]);
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kMaxNormPartials)
    finish_norm_kernel(const double* partials, std::int64_t num_partials, double max_norm, double* scalars) {
  LORA_TRAIN_SHARED(double, slots, 32);
  const double sum = block_sum(threadIdx.x < num_partials ? partials[threadIdx.x] : 0.0, slots);
  if (threadIdx.x != 0) return;
  const double norm = std::sqrt(sum), factor = max_norm / (norm + 1e-6);
  scalars[kGradNorm] = norm;
  scalars[kClipFactor] = max_norm != 0 && factor < 1 ? factor : 1.0;
  if (!std::isfinite(norm) || !std::isfinite(scalars[kLossSum])) scalars[kNonFinite] = 1;
}

__device__ __forceinline__ AdamWFactors factors_of(const AdamWOptions& o, double lr_factor, const double* scalars) {
  const double learning_rate = __dmul_rn(scalars[kLearningRate], lr_factor);
  return {static_cast<float>(scalars[kClipFactor]),
          static_cast<float>(1.0 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1.0 - o.beta2),
          static_cast<float>(std::sqrt(scalars[kBeta2Correction])),
          static_cast<float>(o.epsilon),
          static_cast<float>(-learning_rate / scalars[kBeta1Correction]),
          static_cast<float>(1.0 - __dmul_rn(learning_rate, o.weight_decay))};
}

__device__ __forceinline__ void update(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                       const AdamWFactors& f) {
  const float g = __fmul_rn(grad, f.grad_scale);
  exp_avg = __fadd_rn(exp_avg, __fmul_rn(f.one_minus_beta1, g - exp_avg));
  exp_avg_sq = __fadd_rn(__fmul_rn(exp_avg_sq, f.beta2), __fmul_rn(__fmul_rn(f.one_minus_beta2, g), g));
  const float denominator = __fadd_rn(std::sqrt(exp_avg_sq) / f.correction2_sqrt, f.epsilon);
  param = __fadd_rn(__fmul_rn(param, f.decay), __fmul_rn(f.minus_step_size, exp_avg) / denominator);
}

template <int kSize>
__global__ void __launch_bounds__(kThreads)
    adamw_step_kernel(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n,
                      AdamWOptions options, double lr_factor, const double* scalars) {
  LORA_TRAIN_SHARED(AdamWFactors, shared, 1);
  if (scalars[kNonFinite] != 0) return;
  if (threadIdx.x == 0) shared[0] = factors_of(options, lr_factor, scalars);
  __syncthreads();
  const AdamWFactors f = shared[0];
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x, packs = n / kSize;
  for (std::int64_t at = first * kSize; at < packs * kSize; at += step * kSize) {
    Pack<float, kSize> p = load_pack<kSize>(params + at), m = load_pack<kSize>(exp_avg + at);
    Pack<float, kSize> v = load_pack<kSize>(exp_avg_sq + at);
    const Pack<float, kSize> g = load_pack<kSize>(grads + at);
    for (int i = 0; i < kSize; ++i) update(p.values[i], g.values[i], m.values[i], v.values[i], f);
    store_pack<kSize>(params + at, p);
    store_pack<kSize>(exp_avg + at, m);
    store_pack<kSize>(exp_avg_sq + at, v);
  }
  const std::int64_t rest = packs * kSize + first;
  if (rest < n) update(params[rest], grads[rest], exp_avg[rest], exp_avg_sq[rest], f);
}

bool is_packed(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

void measure_gradients_cuda(const float* grads, std::int64_t n, double max_norm, double* partials, double* scalars,
                            Stream stream) {
  const std::int64_t num_partials = num_norm_partials(n);
  const auto kernel = is_packed(grads) ? sum_squares_kernel<kFullPack<float>> : sum_squares_kernel<1>;
  launch("grad_norm", kernel, {num_partials}, kThreads, stream, grads, n, partials);
  launch("grad_norm_finish", finish_norm_kernel, {1}, kMaxNormPartials, stream, partials, num_partials, max_norm,
         scalars);
}

void adamw_step_cuda(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n,
                     AdamWOptions options, double lr_factor, const double* scalars, Stream stream) {
  constexpr int kPack = kFullPack<float>;
  const bool fits = is_packed(params) && is_packed(grads) && is_packed(exp_avg) && is_packed(exp_avg_sq);
  const std::int64_t blocks = std::min(kMaxBlocks, blocks_for(n, std::int64_t{kThreads} * (fits ? kPack : 1)));
  launch("adamw_step", fits ? adamw_step_kernel<kPack> : adamw_step_kernel<1>, {blocks}, kThreads, stream, params,
         grads, exp_avg, exp_avg_sq, n, options, lr_factor, scalars);
}

}  // namespace lora_train::kernels
