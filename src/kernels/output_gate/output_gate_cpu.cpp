#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"
#include "output_gate_parts.h"

namespace lora_train::kernels {
namespace {

template <class T>
LORA_TRAIN_CLONES void forward_row(const T* x, const T* gate, T* y, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) store(y + f, load(x + f) * rounded_to<T>(fast_sigmoid(load(gate + f))));
}

template <class T>
LORA_TRAIN_CLONES void backward_row(const T* dy, const T* x, const T* gate, T* dx, T* d_gate, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) {
    const float d = load(dy + f), sigmoid = fast_sigmoid(load(gate + f));
    store(d_gate + f, d * load(x + f) * sigmoid * (1.0F - sigmoid));
    store(dx + f, d * rounded_to<T>(sigmoid));
  }
}

}  // namespace

template <class T>
void output_gate_forward_cpu(Rows<const T> x, Rows<const T> gate, Rows<T> y, std::int64_t num_rows, std::int64_t F) {
  parallel_ranges(num_rows, row_grain(2 * F), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) forward_row(x[n], gate[n], y[n], F);
  });
}

template <class T>
void output_gate_backward_cpu(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, Rows<T> dx, Rows<T> d_gate,
                              std::int64_t num_rows, std::int64_t F) {
  parallel_ranges(num_rows, row_grain(3 * F), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) backward_row(dy[n], x[n], gate[n], dx[n], d_gate[n], F);
  });
}

LORA_TRAIN_INSTANTIATE(output_gate_forward_cpu);
LORA_TRAIN_INSTANTIATE(output_gate_backward_cpu);

}  // namespace lora_train::kernels
