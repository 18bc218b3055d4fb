// The LoRA part of a projection: adapter columns and the gradients of A and B.
#pragma once

#include "lora_train/kernels/lora.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// Whether any adapter of the projection has a dropout mask in this pass.
bool has_masks(const Projection& projection, const DropoutContext& dropout);

/// Where dB of each adapter goes, for the kernels that make it. `scale` multiplies the gradients.
std::vector<kernels::LoraPart> parts_of_b(const Projection& projection, double scale);

/// dA of every adapter, times `scale`. x [N, D], ds [N, C].
void add_gradients_of_a(const Projection& projection, const at::Tensor& x, const at::Tensor& ds, double scale,
                        const LinearPass& pass);

/// dx += scale dS A, through the masks where there are some.
void add_adapter_input_gradient(const Projection& projection, const at::Tensor& ds, at::Tensor& dx, double scale,
                                const LinearPass& pass);

}  // namespace lora_train::model
