#include "gated_activation_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

template <class Function, class T>
LORA_TRAIN_CLONES void forward_row(const T* gate, const T* up, T* y, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) {
    const float g = load(gate + f);
    store(y + f, activation_value<Function, T>(g, fast_sigmoid(Function::argument(g))) * load(up + f));
  }
}

template <class Function, class T>
LORA_TRAIN_CLONES void backward_row(const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) {
    const float g = load(gate + f), u = load(up + f), d = load(dy + f);
    const float sigmoid = fast_sigmoid(Function::argument(g));
    store(d_gate + f, activation_gradient<Function>(d * u, g, sigmoid));
    store(d_up + f, d * activation_value<Function, T>(g, sigmoid));
  }
}

/// Calls run(Function(), n) for all rows.
template <class Run>
void for_each_row(std::int64_t num_rows, std::int64_t F, Activation activation, const Run& run) {
  parallel_ranges(num_rows, row_grain(2 * F), [&](std::int64_t begin, std::int64_t end) {
    with_activation(activation, [&](auto function) {
      for (std::int64_t n = begin; n < end; ++n) run(function, n);
    });
  });
}

}  // namespace

template <class T>
void gated_activation_forward_cpu(Rows<const T> gate, Rows<const T> up, Rows<T> y, std::int64_t num_rows,
                                  std::int64_t F, Activation activation) {
  for_each_row(num_rows, F, activation,
               [&]<class Function>(Function, std::int64_t n) { forward_row<Function>(gate[n], up[n], y[n], F); });
}

template <class T>
void gated_activation_backward_cpu(Rows<const T> dy, Rows<const T> gate, Rows<const T> up, Rows<T> d_gate, Rows<T> d_up,
                                   std::int64_t num_rows, std::int64_t F, Activation activation) {
  for_each_row(num_rows, F, activation, [&]<class Function>(Function, std::int64_t n) {
    backward_row<Function>(dy[n], gate[n], up[n], d_gate[n], d_up[n], F);
  });
}

LORA_TRAIN_INSTANTIATE(gated_activation_forward_cpu);
LORA_TRAIN_INSTANTIATE(gated_activation_backward_cpu);

}  // namespace lora_train::kernels
