// LoRA dropout. The mask is a pure function of (key, document, token, feature), so recomputation, resuming and other
// batch layouts draw the same mask.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// y = x * mask / (1 - p). Element (token n, feature d) is kept if (Philox(key; counter = (token_document[n],
/// token_position[n], d / 4, 0))[d % 4] >> 8) * 2^-24 is at least p.
/// key [2] int32: the words of a PhiloxKey, in device memory, so that a captured step reads a new key in each replay.
/// x, y [N, D] fp32, bf16 or fp64, rows may be strided; y may be x. p in [0, 1). token_document, token_position [N]
/// int32.
void dropout_forward(const at::Tensor& x, const at::Tensor& token_document, const at::Tensor& token_position,
                     const at::Tensor& key, double p, at::Tensor& y);

decltype(dropout_forward) dropout_forward_reference;

}  // namespace lora_train::kernels
