// A block takes one row; the forward takes two if a thread then has one pack of each. A thread keeps its elements in
// registers until the sums are known.
//
// Memory traffic of bf16, bytes per element: the forward reads 2 (4 with a residual) and writes 2; the backward reads 4
// (6 to accumulate) and writes 2. The weight comes from L2, 2 bytes per element of a row. With two rows per block, the
// forward loads it before the reduction, at 1 byte per element. For D = 3584, an SM then holds 3 blocks of two rows,
// instead of 4 of one: 64 KiB of loads in flight with the weight, instead of 28.
#include <type_traits>

#include "launch/elements.h"
#include "launch/launch.h"
#include "rms_norm_parts.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 512;
constexpr int kMaxCached = 4;  // packs a thread keeps: rows of up to 16384 bf16 are read once
template <int kCached>
constexpr int kRows = kCached == 1 ? 2 : 1;  // per block
/// Blocks of kThreads per SM that the registers must allow: while one waits for its sums, others load.
template <int kCached>
constexpr int kResident = kCached == 1 ? 3 : 1;

/// block_sum for several values; `slots` has 32 elements for each.
template <int kCount>
__device__ __forceinline__ void block_sums(float (&values)[kCount], float* slots) {
  const unsigned lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  for (int r = 0; r < kCount; ++r) {
    values[r] = warp_sum(values[r]);
    if (lane == 0) slots[r * kWarpSize + warp] = values[r];
  }
  __syncthreads();
  for (int r = 0; r < kCount; ++r) {
    values[r] = warp_sum(lane < blockDim.x / kWarpSize ? slots[r * kWarpSize + lane] : 0.0F);
  }
}

template <class T, int kSize, int kCached>
__global__ void __launch_bounds__(kThreads, kResident<kCached>)
    rms_norm_forward_kernel(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                            float* rstd, std::int64_t num_rows, std::int64_t D) {
  constexpr int kCount = kRows<kCached>;
  LORA_TRAIN_SHARED(float, slots, kCount* kWarpSize);
  const std::int64_t first = std::int64_t{blockIdx.x} * kCount;
  const int packs = static_cast<int>(D / kSize), step = static_cast<int>(blockDim.x),
            own = static_cast<int>(threadIdx.x);
  const int rows = num_rows - first < kCount ? static_cast<int>(num_rows - first) : kCount;
  constexpr bool kIsLong = kCached == kMaxCached;  // a thread may have more packs than it keeps
  constexpr bool kKeepsWeight = kCached == 1;
  Pack<T, kSize> cache[kCount][kCached] = {}, weights = {};
  float sums[kCount] = {};
  const auto add = [&](int r, const Pack<T, kSize>& pack) {
    for (int i = 0; i < kSize; ++i) sums[r] += to_float(pack.values[i]) * to_float(pack.values[i]);
  };
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    const int p = own + k * step;
    if (p >= packs) continue;
    LORA_TRAIN_UNROLL
    for (int r = 0; r < kCount; ++r) {
      if (r < rows) cache[r][k] = load_pack<kSize>(x[first + r] + p * kSize);
    }
    if constexpr (kKeepsWeight) weights = load_pack<kSize>(weight.values + p * kSize);
  }
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    LORA_TRAIN_UNROLL
    for (int r = 0; r < kCount; ++r) add(r, cache[r][k]);
  }
  const int rest = kIsLong ? own + kCached * step : packs;
  for (int p = rest; p < packs; p += step) add(0, load_pack<kSize>(x[first] + p * kSize));
  block_sums(sums, slots);
  const auto put = [&](int r, int p, const Pack<T, kSize>& pack, const Pack<T, kSize>& w) {
    const float scale = sums[r];
    Pack<T, kSize> out;
    for (int i = 0; i < kSize; ++i) {
      store(&out.values[i],
            times_norm_weight<T>(to_float(pack.values[i]) * scale, to_float(w.values[i]), weight.offset));
    }
    if (residual.data != nullptr) {
      const Pack<T, kSize> old = load_pack<kSize>(residual[first + r] + p * kSize);
      for (int i = 0; i < kSize; ++i) store(&out.values[i], to_float(old.values[i]) + to_float(out.values[i]));
    }
    store_pack<kSize>(y[first + r] + p * kSize, out);
  };
  LORA_TRAIN_UNROLL
  for (int r = 0; r < kCount; ++r) {
    if (r >= rows) continue;
    sums[r] = rsqrtf(sums[r] / static_cast<float>(D) + eps);
    if (threadIdx.x == 0) rstd[first + r] = sums[r];
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kCached; ++k) {
      const int p = own + k * step;
      if (p < packs) put(r, p, cache[r][k], kKeepsWeight ? weights : load_pack<kSize>(weight.values + p * kSize));
    }
  }
  for (int p = rest; p < packs; p += step) {
    put(0, p, load_pack<kSize>(x[first] + p * kSize), load_pack<kSize>(weight.values + p * kSize));
  }
}

template <class T, int kSize, int kCached>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward_kernel(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                             bool accumulate, std::int64_t D) {
  LORA_TRAIN_SHARED(float, slots, 32);
  const std::int64_t n = blockIdx.x, packs = D / kSize;
  Pack<T, kSize> x_cache[kCached] = {}, old_cache[kCached] = {};  // old: the values in dx, if it is added to
  float g_cache[kCached][kSize] = {};                             // dy * weight
  const float scale = rstd[n];
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

constexpr unsigned kColumns = 32, kRowLanes = 16;  // per block that sums columns

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

/// Calls run() with the size of packs and the number of them that a thread keeps: 1, 2 or 4, the fewest that hold a
/// row. Fewer registers give higher occupancy.
template <class T, class Run>
void with_cached(bool is_packed, std::int64_t D, const Run& run) {
  with_packs<T>(is_packed, [&]<int kSize>(PackSize<kSize> size) {
    const std::int64_t packs = D / kSize, turns = blocks_for(packs, threads_for(packs, kThreads));
    if (turns <= 1) {
      run(size, std::integral_constant<int, 1>());
    } else if (turns == 2) {
      run(size, std::integral_constant<int, 2>());
    } else {
      run(size, std::integral_constant<int, kMaxCached>());
    }
  });
}

}  // namespace

template <class T>
void rms_norm_forward_cuda(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                           float* rstd, std::int64_t num_rows, std::int64_t D, Stream stream) {
  const bool is_packed =
      all_fit_packs(D, x, Rows<const T>{weight.values, 0}, y) && (residual.data == nullptr || fits_packs(residual, D));
  with_cached<T>(is_packed, D, [&]<int kSize, int kCached>(PackSize<kSize>, std::integral_constant<int, kCached>) {
    launch("rms_norm_forward", rms_norm_forward_kernel<T, kSize, kCached>, {blocks_for(num_rows, kRows<kCached>)},
           threads_for(D / kSize, kThreads), stream, x, weight, eps, residual, y, rstd, num_rows, D);
  });
}

template <class T>
void rms_norm_backward_cuda(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                            bool accumulate, std::int64_t num_rows, std::int64_t D, Stream stream) {
  const bool is_packed = all_fit_packs(D, dy, x, Rows<const T>{weight.values, 0}, dx);
  with_cached<T>(is_packed, D, [&]<int kSize, int kCached>(PackSize<kSize>, std::integral_constant<int, kCached>) {
    launch("rms_norm_backward", rms_norm_backward_kernel<T, kSize, kCached>, {num_rows},
           threads_for(D / kSize, kThreads), stream, dy, x, weight, rstd, dx, accumulate, D);
  });
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
