// Memory traffic: the norm reads 4 bytes of a parameter; the update reads 16 (parameter, gradient, both moments) and
// writes 12. In 8 bits, an element with coded moments has 10 bytes read (parameter, gradient, two codes) and 6 written,
// plus, per block of 256, 16 bytes in the table and two scales read and written: 16.13 in total; fp32 moments take 28.
// Sums are fp64, in an order that depends only on n. Every rounding of the updates is explicit, so no multiplication
// and addition are contracted: the bits match optim/adamw_cpu.cpp.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "adamw_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"
#include "lora_train/kernels/quantized_weight/codes.h"

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
  if (threadIdx.x == 0) shared[0] = adamw_factors(options, lr_factor, options.weight_decay, scalars);
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

// 8-bit moments.

constexpr int kElements = kMomentBlockSize / kWarpSize;  // per lane
constexpr int kPack = 4;  // a lane has adjacent elements in packs, and packs are 128 elements apart

__device__ const DynamicMap kMaps[] = {kSignedMap, kUnsignedMap};

__device__ __forceinline__ int first_of_pack(int pack, unsigned lane) {
  return pack * kPack * static_cast<int>(kWarpSize) + static_cast<int>(lane) * kPack;
}

/// The lane's elements of a block; 0 from `count` on.
template <class T>
__device__ __forceinline__ void load_lane(const T* from, unsigned lane, int count, bool is_packed, T* values) {
  for (int pack = 0; pack < kElements / kPack; ++pack) {
    const int first = first_of_pack(pack, lane);
    if (is_packed) {
      const Pack<T, kPack> loaded = load_pack<kPack>(from + first);
      for (int i = 0; i < kPack; ++i) values[pack * kPack + i] = loaded.values[i];
    } else {
      for (int i = 0; i < kPack; ++i) values[pack * kPack + i] = first + i < count ? from[first + i] : T{0};
    }
  }
}

template <class T>
__device__ __forceinline__ void store_lane(T* to, unsigned lane, int count, bool is_packed, const T* values) {
  for (int pack = 0; pack < kElements / kPack; ++pack) {
    const int first = first_of_pack(pack, lane);
    if (is_packed) {
      Pack<T, kPack> stored;
      for (int i = 0; i < kPack; ++i) stored.values[i] = values[pack * kPack + i];
      store_pack<kPack>(to + first, stored);
    } else {
      for (int i = 0; i < kPack; ++i) {
        if (first + i < count) to[first + i] = values[pack * kPack + i];
      }
    }
  }
}

__device__ __forceinline__ void decode(const std::uint8_t* codes, float scale, const DynamicMap& map, unsigned lane,
                                       float* values) {
  std::uint8_t loaded[kElements];
  load_lane(codes, lane, kMomentBlockSize, true, loaded);
  for (int i = 0; i < kElements; ++i) values[i] = __fmul_rn(map.values[loaded[i]], scale);
}

/// Writes the codes and returns the scale, the largest magnitude. Adds to num_zeroed the values above 0 with code 0.
__device__ __forceinline__ float encode(const float* values, const DynamicMap& map, unsigned lane, std::uint8_t* codes,
                                        int& num_zeroed) {
  float largest = 0;
  for (int i = 0; i < kElements; ++i) largest = fmaxf(largest, std::fabs(values[i]));
  largest = warp_max(largest);
  const float inverse = fminf(1.0F / largest, FLT_MAX);  // finite: zeros get the code of 0
  std::uint8_t stored[kElements];
  for (int i = 0; i < kElements; ++i) {
    const float x = __fmul_rn(values[i], inverse);
    unsigned code = 0;
    for (unsigned step = 128; step > 0; step /= 2) code += x > map.thresholds[code + step - 1] ? step : 0;
    if (values[i] < 0 && code == 127) code = 126;  // a negative moment stays negative
    num_zeroed += values[i] > 0 && code == 0 ? 1 : 0;
    stored[i] = static_cast<std::uint8_t>(code);
  }
  store_lane(codes, lane, kMomentBlockSize, true, stored);
  return largest;
}

__device__ __forceinline__ void update(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                       const AdamW8bitFactors& f) {
  const float g = __fmul_rn(grad, f.grad_scale);
  exp_avg_sq = __fadd_rn(__fmul_rn(exp_avg_sq, f.beta2), __fmul_rn(__fmul_rn(f.one_minus_beta2, g), g));
  exp_avg = __fadd_rn(__fmul_rn(exp_avg, f.beta1), __fmul_rn(f.one_minus_beta1, g));
  const float direction = exp_avg / __fadd_rn(std::sqrt(exp_avg_sq), f.epsilon);
  param = __fmul_rn(__fadd_rn(param, __fmul_rn(f.step_size, direction)), f.decay);
}

/// Updates block `index` with a warp; returns the number of the lane's second moments that became zero.
__device__ __forceinline__ int update_block(const AdamW8bitBuffers& b, std::int64_t index, const DynamicMap* maps,
                                            const AdamW8bitFactors* factors, unsigned lane) {
  const MomentBlock block = b.blocks[index];
  const AdamW8bitFactors f = factors[block.group];
  const bool is_coded = index < b.num_coded;
  const std::int64_t state = (is_coded ? index : index - b.num_coded) * kMomentBlockSize;
  float* params = b.params + block.begin;
  const float* grads = b.grads + block.begin;
  const auto address = reinterpret_cast<std::uintptr_t>(params) | reinterpret_cast<std::uintptr_t>(grads);
  const bool is_packed = block.count == kMomentBlockSize && address % 16 == 0;
  float p[kElements], g[kElements], m[kElements], v[kElements];
  load_lane(params, lane, block.count, is_packed, p);
  load_lane(grads, lane, block.count, is_packed, g);
  if (is_coded) {
    decode(b.exp_avg_codes + state, b.exp_avg_scales[index], maps[0], lane, m);
    decode(b.exp_avg_sq_codes + state, b.exp_avg_sq_scales[index], maps[1], lane, v);
  } else {
    load_lane(b.exp_avg + state, lane, kMomentBlockSize, true, m);
    load_lane(b.exp_avg_sq + state, lane, kMomentBlockSize, true, v);
  }
  for (int i = 0; i < kElements; ++i) update(p[i], g[i], m[i], v[i], f);
  store_lane(params, lane, block.count, is_packed, p);
  if (!is_coded) {
    store_lane(b.exp_avg + state, lane, kMomentBlockSize, true, m);
    store_lane(b.exp_avg_sq + state, lane, kMomentBlockSize, true, v);
    return 0;
  }
  int of_exp_avg = 0, num_zeroed = 0;
  const float exp_avg_scale = encode(m, maps[0], lane, b.exp_avg_codes + state, of_exp_avg);
  const float exp_avg_sq_scale = encode(v, maps[1], lane, b.exp_avg_sq_codes + state, num_zeroed);
  if (lane == 0) {
    b.exp_avg_scales[index] = exp_avg_scale;
    b.exp_avg_sq_scales[index] = exp_avg_sq_scale;
  }
  return num_zeroed;
}

__global__ void __launch_bounds__(kThreads)
    adamw_8bit_step_kernel(AdamW8bitBuffers b, AdamW8bitGroups groups, AdamWOptions options, double* zeroed,
                           const double* scalars) {
  LORA_TRAIN_SHARED(DynamicMap, maps, 2);
  LORA_TRAIN_SHARED(AdamW8bitFactors, factors, AdamW8bitGroups::kMax);
  LORA_TRAIN_SHARED(double, slots, 32);
  if (scalars[kNonFinite] != 0) return;
  const int t = static_cast<int>(threadIdx.x);
  if (t < groups.count) factors[t] = adamw_8bit_factors(options, groups.lr_factor[t], groups.weight_decay[t], scalars);
  for (int map = 0; map < 2; ++map) {
    maps[map].values[t] = kMaps[map].values[t];
    if (t < 255) maps[map].thresholds[t] = kMaps[map].thresholds[t];
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarpSize;
  constexpr std::int64_t kWarps = kThreads / kWarpSize;
  int num_zeroed = 0;
  for (std::int64_t index = blockIdx.x * kWarps + threadIdx.x / kWarpSize; index < b.num_blocks;
       index += gridDim.x * kWarps) {
    num_zeroed += update_block(b, index, maps, factors, lane);
  }
  const double sum = block_sum(static_cast<double>(num_zeroed), slots);
  if (threadIdx.x == 0) zeroed[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kMaxAdamW8bitPartials)
    finish_zeroed_kernel(const double* zeroed, std::int64_t num_partials, std::int64_t num_moments, double* scalars) {
  LORA_TRAIN_SHARED(double, slots, 32);
  if (scalars[kNonFinite] != 0) return;
  const double sum = block_sum(threadIdx.x < num_partials ? zeroed[threadIdx.x] : 0.0, slots);
  if (threadIdx.x == 0) scalars[kZeroedMoments] = num_moments > 0 ? sum / static_cast<double>(num_moments) : 0.0;
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
  const bool fits = is_packed(params) && is_packed(grads) && is_packed(exp_avg) && is_packed(exp_avg_sq);
  const std::int64_t blocks = std::min(kMaxBlocks, blocks_for(n, std::int64_t{kThreads} * (fits ? kPack : 1)));
  launch("adamw_step", fits ? adamw_step_kernel<kPack> : adamw_step_kernel<1>, {blocks}, kThreads, stream, params,
         grads, exp_avg, exp_avg_sq, n, options, lr_factor, scalars);
}

void adamw_8bit_step_cuda(const AdamW8bitBuffers& buffers, const AdamW8bitGroups& groups, const AdamWOptions& options,
                          std::int64_t num_moments, double* zeroed, double* scalars, Stream stream) {
  const std::int64_t num_partials = num_adamw_8bit_partials(buffers.num_blocks);
  launch("adamw_8bit_step", adamw_8bit_step_kernel, {num_partials}, kThreads, stream, buffers, groups, options, zeroed,
         scalars);
  launch("adamw_8bit_finish", finish_zeroed_kernel, {1}, kMaxAdamW8bitPartials, stream, zeroed, num_partials,
         num_moments, scalars);
}

}  // namespace lora_train::kernels
