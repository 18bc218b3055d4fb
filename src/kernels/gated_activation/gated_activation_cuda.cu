// Element-wise: a block takes part of one row, a thread up to two packs of it, all read before any write, so that the
// gradients may replace gate and up.
// Elements moved per feature: forward 2 read, 1 written; backward 3 read, 2 written.
#include "gated_activation_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kPacks = 2;  // per thread

/// Calls use(k, f) for the packs of this thread: pack k begins at element f of row blockIdx.x.
template <int kSize, class Use>
__device__ __forceinline__ void for_each_pack(std::int64_t F, const Use& use) {
  const std::int64_t first = (std::int64_t{blockIdx.y} * kPacks * blockDim.x + threadIdx.x) * kSize;
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t f = first + std::int64_t{k} * blockDim.x * kSize;
    if (f < F) use(k, f);
  }
}

template <class Function, class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_activation_forward_kernel(Rows<const T> gate, Rows<const T> up, Rows<T> y, std::int64_t F) {
  const std::int64_t n = blockIdx.x;
  Pack<T, kSize> g[kPacks], u[kPacks];
  for_each_pack<kSize>(F, [&](int k, std::int64_t f) {
    g[k] = load_pack<kSize>(gate[n] + f);
    u[k] = load_pack<kSize>(up[n] + f);
  });
  for_each_pack<kSize>(F, [&](int k, std::int64_t f) {
    for (int i = 0; i < kSize; ++i) {
      const float x = to_float(g[k].values[i]), sigmoid = sigmoid_for<T>(Function::argument(x));
      store(&u[k].values[i], activation_value<Function, T>(x, sigmoid) * to_float(u[k].values[i]));
    }
    store_pack<kSize>(y[n] + f, u[k]);
  });
}

template <class Function, class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_activation_backward_kernel(Rows<const T> dy, Rows<const T> gate, Rows<const T> up, Rows<T> d_gate,
                                     Rows<T> d_up, std::int64_t F) {
  const std::int64_t n = blockIdx.x;
  Pack<T, kSize> g[kPacks], u[kPacks], d[kPacks];
  for_each_pack<kSize>(F, [&](int k, std::int64_t f) {
    g[k] = load_pack<kSize>(gate[n] + f);
    u[k] = load_pack<kSize>(up[n] + f);
    d[k] = load_pack<kSize>(dy[n] + f);
  });
  for_each_pack<kSize>(F, [&](int k, std::int64_t f) {
    for (int i = 0; i < kSize; ++i) {
      const float x = to_float(g[k].values[i]), gradient = to_float(d[k].values[i]);
      const float sigmoid = sigmoid_for<T>(Function::argument(x));
      store(&g[k].values[i], activation_gradient<Function>(gradient * to_float(u[k].values[i]), x, sigmoid));
      store(&u[k].values[i], gradient * activation_value<Function, T>(x, sigmoid));
    }
    store_pack<kSize>(d_gate[n] + f, g[k]);
    store_pack<kSize>(d_up[n] + f, u[k]);
  });
}

/// Calls run(function, size of packs, grid, threads): splits a row across blocks, and a block's part across threads.
template <class T, class Run>
void with_parts(bool is_packed, std::int64_t num_rows, std::int64_t F, Activation activation, const Run& run) {
  if (F == 0) return;
  with_packs<T>(is_packed, [&]<int kSize>(PackSize<kSize> size) {
    const std::int64_t packs = F / kSize, wanted = blocks_for(packs, kThreads * kPacks);
    const unsigned threads = threads_for(blocks_for(packs, wanted * kPacks), kThreads);
    const Grid grid = {num_rows, blocks_for(packs, std::int64_t{threads} * kPacks)};
    with_activation(activation, [&](auto function) { run(function, size, grid, threads); });
  });
}

}  // namespace

template <class T>
void gated_activation_forward_cuda(Rows<const T> gate, Rows<const T> up, Rows<T> y, std::int64_t num_rows,
                                   std::int64_t F, Activation activation, Stream stream) {
  const auto run = [&]<class Function, int kSize>(Function, PackSize<kSize>, Grid grid, unsigned threads) {
    launch("gated_activation_forward", gated_activation_forward_kernel<Function, T, kSize>, grid, threads, stream, gate,
           up, y, F);
  };
  with_parts<T>(all_fit_packs(F, gate, up, y), num_rows, F, activation, run);
}

template <class T>
void gated_activation_backward_cuda(Rows<const T> dy, Rows<const T> gate, Rows<const T> up, Rows<T> d_gate,
                                    Rows<T> d_up, std::int64_t num_rows, std::int64_t F, Activation activation,
                                    Stream stream) {
  const auto run = [&]<class Function, int kSize>(Function, PackSize<kSize>, Grid grid, unsigned threads) {
    launch("gated_activation_backward", gated_activation_backward_kernel<Function, T, kSize>, grid, threads, stream, dy,
           gate, up, d_gate, d_up, F);
  };
  with_parts<T>(all_fit_packs(F, dy, gate, up, d_gate, d_up), num_rows, F, activation, run);
}

LORA_TRAIN_INSTANTIATE(gated_activation_forward_cuda);
LORA_TRAIN_INSTANTIATE(gated_activation_backward_cuda);

}  // namespace lora_train::kernels
