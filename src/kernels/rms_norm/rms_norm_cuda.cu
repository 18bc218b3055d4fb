// One block per row. A thread keeps the elements that it reads in registers until the sum is known.
#include <type_traits>

#include "launch/launch.h"
#include "launch/pack.h"
#include "rms_norm_cuda.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 512;
constexpr int kMaxCached = 4;  // packs a thread keeps: rows of up to 16384 bf16 are read once

template <class T, int kSize, int kCached>
__global__ void __launch_bounds__(kThreads)
    rms_norm_forward_kernel(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                            float* rstd, std::int64_t D) {
  LORA_TRAIN_SHARED(float, slots, 32);
  const std::int64_t n = blockIdx.x, packs = D / kSize;
  const T* row = x[n];
  Pack<T, kSize> cache[kCached] = {};
  float sum = 0;
  const auto add = [&](const Pack<T, kSize>& pack) {
    for (int i = 0; i < kSize; ++i) sum += to_float(pack.values[i]) * to_float(pack.values[i]);
  };
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    const std::int64_t p = threadIdx.x + std::int64_t{k} * blockDim.x;
    if (p < packs) add(cache[k] = load_pack<kSize>(row + p * kSize));
  }
  const std::int64_t rest = threadIdx.x + std::int64_t{kCached} * blockDim.x;
  for (std::int64_t p = rest; p < packs; p += blockDim.x) add(load_pack<kSize>(row + p * kSize));
  const float scale = rsqrtf(block_sum(sum, slots) / static_cast<float>(D) + eps);
  if (threadIdx.x == 0) rstd[n] = scale;
  const auto put = [&](std::int64_t p, const Pack<T, kSize>& pack) {
    const Pack<T, kSize> w = load_pack<kSize>(weight.values + p * kSize);
    Pack<T, kSize> out;
    for (int i = 0; i < kSize; ++i) {
      store(&out.values[i],
            times_norm_weight<T>(to_float(pack.values[i]) * scale, to_float(w.values[i]), weight.offset));
    }
    if (residual.data != nullptr) {
      const Pack<T, kSize> old = load_pack<kSize>(residual[n] + p * kSize);
      for (int i = 0; i < kSize; ++i) store(&out.values[i], to_float(old.values[i]) + to_float(out.values[i]));
    }
    store_pack<kSize>(y[n] + p * kSize, out);
  };
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    const std::int64_t p = threadIdx.x + std::int64_t{k} * blockDim.x;
    if (p < packs) put(p, cache[k]);
  }
  for (std::int64_t p = rest; p < packs; p += blockDim.x) put(p, load_pack<kSize>(row + p * kSize));
}

template <class T, int kSize, int kCached>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward_kernel(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                             bool accumulate, std::int64_t D) {
  LORA_TRAIN_SHARED(float, slots, 32);
  const std::int64_t n = blockIdx.x, packs = D / kSize;
  Pack<T, kSize> x_cache[kCached] = {}, old_cache[kCached] = {};  // old: what dx holds, when it is added to
  float g_cache[kCached][kSize] = {};                             // dy * weight
  float sum = 0;
  const auto read = [&](std::int64_t p, Pack<T, kSize>& values, float* g) {
    values = load_pack<kSize>(x[n] + p * kSize);
    const Pack<T, kSize> d = load_pack<kSize>(dy[n] + p * kSize), w = load_pack<kSize>(weight.values + p * kSize);
    for (int i = 0; i < kSize; ++i) g[i] = to_float(d.values[i]) * (to_float(w.values[i]) + weight.offset);
  };
  const auto add = [&](const Pack<T, kSize>& values, const float* g) {
    for (int i = 0; i < kSize; ++i) sum += g[i] * to_float(values.values[i]);
  };
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    const std::int64_t p = threadIdx.x + std::int64_t{k} * blockDim.x;
    if (p >= packs) continue;
    read(p, x_cache[k], g_cache[k]);
    if (accumulate) old_cache[k] = load_pack<kSize>(dx[n] + p * kSize);
    add(x_cache[k], g_cache[k]);
  }
  const std::int64_t rest = threadIdx.x + std::int64_t{kCached} * blockDim.x;
  Pack<T, kSize> values;
  float g[kSize];
  for (std::int64_t p = rest; p < packs; p += blockDim.x) {
    read(p, values, g);
    add(values, g);
  }
  const float scale = rstd[n];
  const float along_x = -scale * scale * scale * (block_sum(sum, slots) / static_cast<float>(D));
  const auto put = [&](std::int64_t p, const Pack<T, kSize>& from, const float* gradient, Pack<T, kSize> out) {
    for (int i = 0; i < kSize; ++i) {
      const float value = gradient[i] * scale + to_float(from.values[i]) * along_x;
      store(&out.values[i], accumulate ? to_float(out.values[i]) + value : value);
    }
    store_pack<kSize>(dx[n] + p * kSize, out);
  };
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    const std::int64_t p = threadIdx.x + std::int64_t{k} * blockDim.x;
    if (p < packs) put(p, x_cache[k], g_cache[k], old_cache[k]);
  }
  for (std::int64_t p = rest; p < packs; p += blockDim.x) {
    read(p, values, g);
    put(p, values, g, accumulate ? load_pack<kSize>(dx[n] + p * kSize) : Pack<T, kSize>{});
  }
}

constexpr unsigned kColumns = 32, kRowLanes = 16;  // of a block that sums columns

/// Full fine-tuning only: one block sums 32 columns over all rows, always in the same order.
template <class T>
__global__ void __launch_bounds__(kColumns* kRowLanes)
    rms_norm_weight_gradient_kernel(Rows<const T> dy, Rows<const T> x, const float* rstd, float* dweight,
                                    std::int64_t num_rows, std::int64_t D) {
  LORA_TRAIN_SHARED(float, sums, kColumns* kRowLanes);
  const unsigned column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  const std::int64_t d = std::int64_t{blockIdx.x} * kColumns + column;
  float sum = 0;
  for (std::int64_t n = lane; d < D && n < num_rows; n += kRowLanes) {
    sum += to_float(dy[n][d]) * (to_float(x[n][d]) * rstd[n]);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || d >= D) return;
  for (unsigned other = 1; other < kRowLanes; ++other) sum += sums[other * kColumns + column];
  dweight[d] += sum;
}

/// Calls run() with the packs that a thread keeps, as a constant: 1, 2 or 4, the fewest that hold a row. Fewer registers give
/// higher occupancy.
template <class Run>
void with_cached(std::int64_t packs, const Run& run) {
  const std::int64_t turns = blocks_for(packs, threads_for(packs, kThreads));
  if (turns <= 1) {
    run(std::integral_constant<int, 1>());
  } else if (turns == 2) {
    run(std::integral_constant<int, 2>());
  } else {
    run(std::integral_constant<int, kMaxCached>());
  }
}

}  // namespace

template <class T>
void rms_norm_forward_cuda(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                           float* rstd, std::int64_t num_rows, std::int64_t D, Stream stream) {
  constexpr int kPack = kFullPack<T>;
  const Rows<const T> w{weight.values, 0};
  const bool is_packed =
      fits_packs(x, D) && fits_packs(w, D) && fits_packs(y, D) && (residual.data == nullptr || fits_packs(residual, D));
  const auto run = [&]<int kSize>(std::integral_constant<int, kSize>) {
    with_cached(D / kSize, [&]<int kCached>(std::integral_constant<int, kCached>) {
      launch("rms_norm_forward", rms_norm_forward_kernel<T, kSize, kCached>, {num_rows},
             threads_for(D / kSize, kThreads), stream, x, weight, eps, residual, y, rstd, D);
    });
  };
  is_packed ? run(std::integral_constant<int, kPack>()) : run(std::integral_constant<int, 1>());
}

template <class T>
void rms_norm_backward_cuda(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                            bool accumulate, std::int64_t num_rows, std::int64_t D, Stream stream) {
  constexpr int kPack = kFullPack<T>;
  const Rows<const T> w{weight.values, 0};
  const bool is_packed = fits_packs(dy, D) && fits_packs(x, D) && fits_packs(w, D) && fits_packs(dx, D);
  const auto run = [&]<int kSize>(std::integral_constant<int, kSize>) {
    with_cached(D / kSize, [&]<int kCached>(std::integral_constant<int, kCached>) {
      launch("rms_norm_backward", rms_norm_backward_kernel<T, kSize, kCached>, {num_rows},
             threads_for(D / kSize, kThreads), stream, dy, x, weight, rstd, dx, accumulate, D);
    });
  };
  is_packed ? run(std::integral_constant<int, kPack>()) : run(std::integral_constant<int, 1>());
}

template <class T>
void rms_norm_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, const float* rstd, float* dweight,
                                   std::int64_t num_rows, std::int64_t D, Stream stream) {
  launch("rms_norm_weight_gradient", rms_norm_weight_gradient_kernel<T>, {blocks_for(D, kColumns)},
         kColumns * kRowLanes, stream, dy, x, rstd, dweight, num_rows, D);
}

LORA_TRAIN_INSTANTIATE(rms_norm_forward_cuda);
LORA_TRAIN_INSTANTIATE(rms_norm_backward_cuda);
LORA_TRAIN_INSTANTIATE(rms_norm_weight_gradient_cuda);

}  // namespace lora_train::kernels
