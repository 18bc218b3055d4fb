#include "swiglu_cpu.h"

#include "lora_train/kernels/parallel.h"
#include "vector_math.h"

namespace lora_train::kernels {
namespace {

template <class T>
LORA_TRAIN_INLINE void forward_row(const T* gate, const T* up, T* y, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) {
    const float g = load(gate + f);
    store(y + f, g * fast_sigmoid(g) * load(up + f));
  }
}

LORA_TRAIN_CLONES void clone_forward(const float* gate, const float* up, float* y, std::int64_t F) {
  forward_row(gate, up, y, F);
}
LORA_TRAIN_CLONES void clone_forward(const Bf16* gate, const Bf16* up, Bf16* y, std::int64_t F) {
  forward_row(gate, up, y, F);
}

template <class T>
LORA_TRAIN_INLINE void backward_row(const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, std::int64_t F) {
#pragma omp simd
  for (std::int64_t f = 0; f < F; ++f) {
    const float g = load(gate + f), u = load(up + f), d = load(dy + f);
    const float sigmoid = fast_sigmoid(g);
    const float silu = g * sigmoid;
    store(d_gate + f, d * u * (sigmoid + silu * (1.0F - sigmoid)));
    store(d_up + f, d * silu);
  }
}

LORA_TRAIN_CLONES void clone_backward(const float* dy, const float* gate, const float* up, float* d_gate, float* d_up,
                                      std::int64_t F) {
  backward_row(dy, gate, up, d_gate, d_up, F);
}
LORA_TRAIN_CLONES void clone_backward(const Bf16* dy, const Bf16* gate, const Bf16* up, Bf16* d_gate, Bf16* d_up,
                                      std::int64_t F) {
  backward_row(dy, gate, up, d_gate, d_up, F);
}

}  // namespace

template <class T>
void swiglu_forward_cpu(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F) {
  parallel_ranges(num_rows, row_grain(2 * F), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      clone_forward(gate_up[n], gate_up[n] + F, y[n], F);
    }
  });
}

template <class T>
void swiglu_backward_cpu(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                         std::int64_t F) {
  parallel_ranges(num_rows, row_grain(2 * F), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      clone_backward(dy[n], gate_up[n], gate_up[n] + F, d_gate_up[n], d_gate_up[n] + F, F);
    }
  });
}

#define LORA_TRAIN_INSTANTIATE(T)                                                              \
  template void swiglu_forward_cpu(Rows<const T>, Rows<T>, std::int64_t, std::int64_t);        \
  template void swiglu_backward_cpu(Rows<const T>, Rows<const T>, Rows<T>, std::int64_t, std::int64_t)
LORA_TRAIN_INSTANTIATE(float);
LORA_TRAIN_INSTANTIATE(Bf16);

}  // namespace lora_train::kernels
