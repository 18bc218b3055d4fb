// Element-wise: a block takes part of one row, a thread a pack of it.
// Elements moved per feature: forward 2 read, 1 written; backward 3 read, 2 written.
#include "launch/elements.h"
#include "launch/launch.h"
#include "output_gate_parts.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    output_gate_forward_kernel(Rows<const T> x, Rows<const T> gate, Rows<T> y, std::int64_t F) {
  const std::int64_t n = blockIdx.x, f = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kSize;
  if (f >= F) return;
  Pack<T, kSize> values = load_pack<kSize>(x[n] + f);
  const Pack<T, kSize> gates = load_pack<kSize>(gate[n] + f);
  for (int i = 0; i < kSize; ++i) {
    const float sigmoid = rounded_to<T>(sigmoid_for<T>(to_float(gates.values[i])));
    store(&values.values[i], to_float(values.values[i]) * sigmoid);
  }
  store_pack(y[n] + f, values);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    output_gate_backward_kernel(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, Rows<T> dx, Rows<T> d_gate,
                                std::int64_t F) {
  const std::int64_t n = blockIdx.x, f = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kSize;
  if (f >= F) return;
  const Pack<T, kSize> d = load_pack<kSize>(dy[n] + f), values = load_pack<kSize>(x[n] + f);
  Pack<T, kSize> of_x, of_gate = load_pack<kSize>(gate[n] + f);
  for (int i = 0; i < kSize; ++i) {
    const float gradient = to_float(d.values[i]), sigmoid = sigmoid_for<T>(to_float(of_gate.values[i]));
    store(&of_x.values[i], gradient * rounded_to<T>(sigmoid));
    store(&of_gate.values[i], gradient * to_float(values.values[i]) * sigmoid * (1.0F - sigmoid));
  }
  store_pack(dx[n] + f, of_x);
  store_pack(d_gate[n] + f, of_gate);
}

/// Blocks for rows of `packs`, and their threads.
struct RowBlocks {
  Grid grid;
  unsigned threads;
  RowBlocks(std::int64_t num_rows, std::int64_t packs) : threads(even_threads_for(packs, kThreads)) {
    grid = {num_rows, blocks_for(packs, threads)};
  }
};

}  // namespace

template <class T>
void output_gate_forward_cuda(Rows<const T> x, Rows<const T> gate, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                              Stream stream) {
  with_packs<T>(fits_packs(x, F) && fits_packs(gate, F) && fits_packs(y, F), [&]<int kSize>(PackSize<kSize>) {
    const RowBlocks blocks(num_rows, F / kSize);
    launch("output_gate_forward", output_gate_forward_kernel<T, kSize>, blocks.grid, blocks.threads, stream, x, gate, y,
           F);
  });
}

template <class T>
void output_gate_backward_cuda(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, Rows<T> dx, Rows<T> d_gate,
                               std::int64_t num_rows, std::int64_t F, Stream stream) {
  const bool is_packed =
      fits_packs(dy, F) && fits_packs(x, F) && fits_packs(gate, F) && fits_packs(dx, F) && fits_packs(d_gate, F);
  with_packs<T>(is_packed, [&]<int kSize>(PackSize<kSize>) {
    const RowBlocks blocks(num_rows, F / kSize);
    launch("output_gate_backward", output_gate_backward_kernel<T, kSize>, blocks.grid, blocks.threads, stream, dy, x,
           gate, dx, d_gate, F);
  });
}

LORA_TRAIN_INSTANTIATE(output_gate_forward_cuda);
LORA_TRAIN_INSTANTIATE(output_gate_backward_cuda);

}  // namespace lora_train::kernels
