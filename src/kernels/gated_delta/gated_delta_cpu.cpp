// The formulas are in gated_delta_chunk.h, the order of work in gated_delta_calls.h.
#include "gated_delta_calls.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

template <class Call>
void run_tasks(const Call& call) {
  parallel_ranges(call.num_tasks(), 1, [&](std::int64_t begin, std::int64_t end) {
    on_this_machine([&]<class Machine>(Machine) { call.template run<Machine>(begin, end); });
  });
}

}  // namespace

template <class T>
void gated_delta_forward_cpu(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, HostRanges sequences, float* state,
                             Rows<T> out) {
  run_tasks(chunked::ForwardCall<float, T>{{shape, inputs, sequences}, state, out});
  clear_rest(sequences, out, shape.value_width());
}

template <class T>
void gated_delta_backward_cpu(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, HostRanges sequences,
                              Rows<const T> d_out, float* scratch, GatedDeltaGradientRows<T> gradients) {
  const std::int64_t heads = shape.value_heads;
  static thread_local std::vector<double> sums;
  sums.resize(static_cast<std::size_t>(2 * sequences.count * heads));
  run_tasks(chunked::BackwardCall<float, T>{{shape, inputs, sequences}, d_out, scratch, gradients, sums.data()});
  clear_rest(sequences, gradients.qkv, shape.qkv_width());
  clear_rest(sequences, gradients.a, heads);
  clear_rest(sequences, gradients.b, heads);
  for (std::int64_t h = 0; h < heads; ++h) {
    double of_a_log = 0, of_dt_bias = 0;
    for (std::int64_t s = 0; s < sequences.count; ++s) {
      const double* const of_sequence = sums.data() + 2 * (s * heads + h);
      of_a_log += of_sequence[0];
      of_dt_bias += of_sequence[1];
    }
    if (gradients.a_log != nullptr) gradients.a_log[h] += static_cast<float>(of_a_log);
    if (gradients.dt_bias != nullptr) gradients.dt_bias[h] += static_cast<float>(of_dt_bias);
  }
}

LORA_TRAIN_INSTANTIATE(gated_delta_forward_cpu);
LORA_TRAIN_INSTANTIATE(gated_delta_backward_cpu);

}  // namespace lora_train::kernels
