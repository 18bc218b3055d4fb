// The LoRA part of a projection: adapter columns and the gradients of A and B.
#pragma once

#include "lora_train/kernels/lora/lora.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// Whether any adapter of the projection has a dropout mask in this pass.
bool has_masks(const Projection& projection, const DropoutContext& dropout);

/// Where the kernels add dB of each adapter. `scale` multiplies the gradients.
std::vector<kernels::LoraPart> parts_of_b(const Projection& projection, double scale);

/// Adds `scale` times dA of every adapter to its gradient. x [N, D], ds [N, C].
void add_gradients_of_a(const Projection& projection, const at::Tensor& x, const at::Tensor& ds, double scale,
                        const LinearPass& pass);

/// dx += scale dS A, through the dropout masks if there are any.
void add_adapter_input_gradient(const Projection& projection, const at::Tensor& ds, at::Tensor& dx, double scale,
                                const LinearPass& pass);

}  // namespace lora_train::model
