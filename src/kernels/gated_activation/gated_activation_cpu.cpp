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
    store(y + f, g * fast_sigmoid(Function::argument(g)) * load(up + f));
  }
}

template <class Function, class T>
LORA_TRAIN_CLONES void backward_row(const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) {
    const float g = load(gate + f), u = load(up + f), d = load(dy + f);
    const float sigmoid = fast_sigmoid(Function::argument(g));
    const float value = g * sigmoid;
    store(d_gate + f, d * u * activation_slope<Function>(g, sigmoid, value));
    store(d_up + f, d * value);
  }
}

}  // namespace

template <class T>
void gated_activation_forward_cpu(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                                  Activation activation) {
  parallel_ranges(num_rows, row_grain(2 * F), [&](std::int64_t begin, std::int64_t end) {
    with_activation(activation, [&]<class Function>(Function) {
      for (std::int64_t n = begin; n < end; ++n) forward_row<Function>(gate_up[n], gate_up[n] + F, y[n], F);
    });
  });
}

template <class T>
void gated_activation_backward_cpu(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                   std::int64_t F, Activation activation) {
  parallel_ranges(num_rows, row_grain(2 * F), [&](std::int64_t begin, std::int64_t end) {
    with_activation(activation, [&]<class Function>(Function) {
      for (std::int64_t n = begin; n < end; ++n) {
        backward_row<Function>(dy[n], gate_up[n], gate_up[n] + F, d_gate_up[n], d_gate_up[n] + F, F);
      }
    });
  });
}

LORA_TRAIN_INSTANTIATE(gated_activation_forward_cpu);
LORA_TRAIN_INSTANTIATE(gated_activation_backward_cpu);

}  // namespace lora_train::kernels
