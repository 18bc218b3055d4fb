// Element-wise: a block takes part of one row, a thread up to two packs of it, all read before any write, so that the
// gradient may replace gate and up.
// Elements moved per feature: forward 2 read, 1 written; backward 3 read, 2 written.
#include "gated_activation_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kPacks = 2;  // per thread

template <class Function, class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_activation_forward_kernel(Rows<const T> gate_up, Rows<T> y, std::int64_t F) {
  const std::int64_t n = blockIdx.x, first = (std::int64_t{blockIdx.y} * kPacks * blockDim.x + threadIdx.x) * kSize;
  const T* const gate = gate_up[n];
  const T* const up = gate + F;
  Pack<T, kSize> g[kPacks], u[kPacks];
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t f = first + std::int64_t{k} * blockDim.x * kSize;
    if (f >= F) continue;
    g[k] = load_pack<kSize>(gate + f);
    u[k] = load_pack<kSize>(up + f);
  }
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t f = first + std::int64_t{k} * blockDim.x * kSize;
    if (f >= F) continue;
    for (int i = 0; i < kSize; ++i) {
      const float x = to_float(g[k].values[i]);
      store(&u[k].values[i], x * sigmoid_for<T>(Function::argument(x)) * to_float(u[k].values[i]));
    }
    store_pack<kSize>(y[n] + f, u[k]);
  }
}

template <class Function, class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_activation_backward_kernel(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t F) {
  const std::int64_t n = blockIdx.x, first = (std::int64_t{blockIdx.y} * kPacks * blockDim.x + threadIdx.x) * kSize;
  const T* const gate = gate_up[n];
  const T* const up = gate + F;
  Pack<T, kSize> g[kPacks], u[kPacks], d[kPacks];
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t f = first + std::int64_t{k} * blockDim.x * kSize;
    if (f >= F) continue;
    g[k] = load_pack<kSize>(gate + f);
    u[k] = load_pack<kSize>(up + f);
    d[k] = load_pack<kSize>(dy[n] + f);
  }
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t f = first + std::int64_t{k} * blockDim.x * kSize;
    if (f >= F) continue;
    for (int i = 0; i < kSize; ++i) {
      const float x = to_float(g[k].values[i]), gradient = to_float(d[k].values[i]);
      const float sigmoid = sigmoid_for<T>(Function::argument(x));
      const float value = x * sigmoid;
      store(&g[k].values[i], gradient * to_float(u[k].values[i]) * activation_slope<Function>(x, sigmoid, value));
      store(&u[k].values[i], gradient * value);
    }
    T* const to = d_gate_up[n] + f;
    store_pack<kSize>(to, g[k]);
    store_pack<kSize>(to + F, u[k]);
  }
}

/// Splits a row across blocks, and a block's part across its threads: packed_kernel if rows allow packs, else the
/// element kernel.
template <class T, class Kernel, class... Arguments>
void launch_parts(const char* name, bool is_packed, Kernel packed_kernel, Kernel kernel, std::int64_t num_rows,
                  std::int64_t F, Stream stream, Arguments... arguments) {
  if (F == 0) return;
  const std::int64_t packs = is_packed ? F / kFullPack<T> : F, wanted = blocks_for(packs, kThreads * kPacks);
  const unsigned threads = threads_for(blocks_for(packs, wanted * kPacks), kThreads);
  launch(name, is_packed ? packed_kernel : kernel, {num_rows, blocks_for(packs, std::int64_t{threads} * kPacks)},
         threads, stream, arguments..., F);
}

}  // namespace

template <class T>
void gated_activation_forward_cuda(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                                   Activation activation, Stream stream) {
  const bool is_packed = fits_packs(gate_up, F) && fits_packs(y, F);
  with_activation(activation, [&]<class Function>(Function) {
    launch_parts<T>("gated_activation_forward", is_packed, gated_activation_forward_kernel<Function, T, kFullPack<T>>,
                    gated_activation_forward_kernel<Function, T, 1>, num_rows, F, stream, gate_up, y);
  });
}

template <class T>
void gated_activation_backward_cuda(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                    std::int64_t F, Activation activation, Stream stream) {
  const bool is_packed = fits_packs(dy, F) && fits_packs(gate_up, F) && fits_packs(d_gate_up, F);
  with_activation(activation, [&]<class Function>(Function) {
    launch_parts<T>("gated_activation_backward", is_packed, gated_activation_backward_kernel<Function, T, kFullPack<T>>,
                    gated_activation_backward_kernel<Function, T, 1>, num_rows, F, stream, dy, gate_up, d_gate_up);
  });
}

LORA_TRAIN_INSTANTIATE(gated_activation_forward_cuda);
LORA_TRAIN_INSTANTIATE(gated_activation_backward_cuda);

}  // namespace lora_train::kernels
