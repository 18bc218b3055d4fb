// The table of native CUDA kernels. liblora_train_cuda.so holds them compiled for GPUs; tests link the same sources
// compiled for the CPU (launch.h). No torch.
#pragma once

#include "adamw/adamw_parts.h"
#include "cast/cast_parts.h"
#include "causal_conv/causal_conv_parts.h"
#include "cross_entropy/cross_entropy_parts.h"
#include "dropout/dropout_parts.h"
#include "embedding/embedding_parts.h"
#include "gated_activation/gated_activation_parts.h"
#include "gated_delta/gated_delta_parts.h"
#include "gated_norm/gated_norm_parts.h"
#include "launch/elements.h"
#include "lora/lora_parts.h"
#include "quantized_weight/quantized_weight_parts.h"
#include "rms_norm/rms_norm_parts.h"
#include "rope/rope_parts.h"
#include "sampling/sampling_parts.h"

namespace lora_train::kernels {

/// Kernels that are instantiated per element type. Only linked_native_kernels() creates tables, so that only its
/// library or program links the kernels.
template <class T>
struct NativeKernelsOf {
  decltype(&rms_norm_forward_cuda<T>) rms_norm_forward = rms_norm_forward_cuda<T>;
  decltype(&rms_norm_backward_cuda<T>) rms_norm_backward = rms_norm_backward_cuda<T>;
  decltype(&rms_norm_weight_gradient_cuda<T>) rms_norm_weight_gradient = rms_norm_weight_gradient_cuda<T>;
  decltype(&cross_entropy_in_place_cuda<T>) cross_entropy_in_place = cross_entropy_in_place_cuda<T>;
  decltype(&dropout_forward_cuda<T>) dropout_forward = dropout_forward_cuda<T>;
  decltype(&lora_grad_b_cuda<T>) lora_grad_b = lora_grad_b_cuda<T>;
  decltype(&lora_grad_a_cuda<T>) lora_grad_a = lora_grad_a_cuda<T>;
  decltype(&gated_activation_forward_cuda<T>) gated_activation_forward = gated_activation_forward_cuda<T>;
  decltype(&gated_activation_backward_cuda<T>) gated_activation_backward = gated_activation_backward_cuda<T>;
  decltype(&gated_delta_forward_cuda<T>) gated_delta_forward = gated_delta_forward_cuda<T>;
  decltype(&gated_delta_backward_cuda<T>) gated_delta_backward = gated_delta_backward_cuda<T>;
  decltype(&embedding_forward_cuda<T>) embedding_forward = embedding_forward_cuda<T>;
  decltype(&embedding_backward_cuda<T>) embedding_backward = embedding_backward_cuda<T>;
  decltype(&trainable_rows_backward_cuda<T>) trainable_rows_backward = trainable_rows_backward_cuda<T>;
  decltype(&rope_cuda<T>) rope = rope_cuda<T>;
  decltype(&rope_backward_cuda<T>) rope_backward = rope_backward_cuda<T>;
  decltype(&qk_norm_rope_forward_cuda<T>) qk_norm_rope_forward = qk_norm_rope_forward_cuda<T>;
  decltype(&qk_norm_rope_backward_cuda<T>) qk_norm_rope_backward = qk_norm_rope_backward_cuda<T>;
  decltype(&qk_norm_weight_gradient_cuda<T>) qk_norm_weight_gradient = qk_norm_weight_gradient_cuda<T>;
  decltype(&scaled_copies_cuda<T>) scaled_copies = scaled_copies_cuda<T>;
  decltype(&dequantize_cuda<T>) dequantize = dequantize_cuda<T>;
  decltype(&gather_rows_cuda<T>) gather_rows = gather_rows_cuda<T>;
  decltype(&scatter_rows_cuda<T>) scatter_rows = scatter_rows_cuda<T>;
  decltype(&causal_conv_forward_cuda<T>) causal_conv_forward = causal_conv_forward_cuda<T>;
  decltype(&causal_conv_backward_cuda<T>) causal_conv_backward = causal_conv_backward_cuda<T>;
  decltype(&causal_conv_weight_gradient_cuda<T>) causal_conv_weight_gradient = causal_conv_weight_gradient_cuda<T>;
  decltype(&gated_norm_forward_cuda<T>) gated_norm_forward = gated_norm_forward_cuda<T>;
  decltype(&gated_norm_backward_cuda<T>) gated_norm_backward = gated_norm_backward_cuda<T>;
  decltype(&gated_norm_weight_gradient_cuda<T>) gated_norm_weight_gradient = gated_norm_weight_gradient_cuda<T>;
};

struct NativeKernels {
  NativeKernelsOf<float> f32;
  NativeKernelsOf<Bf16> bf16;
  decltype(&lora_grad_s_and_b_cuda) lora_grad_s_and_b = lora_grad_s_and_b_cuda;
  decltype(&measure_gradients_cuda) measure_gradients = measure_gradients_cuda;
  decltype(&adamw_step_cuda) adamw_step = adamw_step_cuda;
  decltype(&adamw_8bit_step_cuda) adamw_8bit_step = adamw_8bit_step_cuda;
  decltype(&add_losses_cuda) add_losses = add_losses_cuda;
  decltype(&take_next_cuda) take_next = take_next_cuda;
  decltype(&sample_tokens_cuda) sample_tokens = sample_tokens_cuda;
};

/// The table of the library or program that this file is linked into.
const NativeKernels& linked_native_kernels();

}  // namespace lora_train::kernels
