#include "native_kernels.h"

namespace lora_train::kernels {
namespace {

template <class T>
NativeKernelsOf<T> kernels_of() {
  NativeKernelsOf<T> table{};
  table.rms_norm_forward = rms_norm_forward_cuda<T>;
  table.rms_norm_backward = rms_norm_backward_cuda<T>;
  table.rms_norm_weight_gradient = rms_norm_weight_gradient_cuda<T>;
  table.cross_entropy_in_place = cross_entropy_in_place_cuda<T>;
  table.dropout_forward = dropout_forward_cuda<T>;
  table.lora_grad_b = lora_grad_b_cuda<T>;
  table.lora_grad_a = lora_grad_a_cuda<T>;
  table.gated_activation_forward = gated_activation_forward_cuda<T>;
  table.gated_activation_backward = gated_activation_backward_cuda<T>;
  table.embedding_forward = embedding_forward_cuda<T>;
  table.embedding_backward = embedding_backward_cuda<T>;
  table.trainable_rows_backward = trainable_rows_backward_cuda<T>;
  table.rope = rope_cuda<T>;
  table.rope_backward = rope_backward_cuda<T>;
  table.qk_norm_rope_forward = qk_norm_rope_forward_cuda<T>;
  table.qk_norm_rope_backward = qk_norm_rope_backward_cuda<T>;
  table.qk_norm_weight_gradient = qk_norm_weight_gradient_cuda<T>;
  table.scaled_copy_to_f32 = scaled_copy_cuda<T, float>;
  table.scaled_copy_to_bf16 = scaled_copy_cuda<T, Bf16>;
  table.gather_rows = gather_rows_cuda<T>;
  table.scatter_rows = scatter_rows_cuda<T>;
  return table;
}

}  // namespace

const NativeKernels& linked_native_kernels() {
  static const NativeKernels table{kernels_of<float>(),    kernels_of<Bf16>(), lora_grad_s_and_b_cuda,
                                   measure_gradients_cuda, adamw_step_cuda,    add_losses_cuda,
                                   take_next_cuda};
  return table;
}

}  // namespace lora_train::kernels
