// From the last layer's output to logits and back: final norm, output head, logit scale. Shared by training, evaluation,
// generation and the check of a merge. m rows, D hidden, V vocabulary.
#pragma once

#include "lora_train/model/weights/weights.h"

namespace lora_train::model {

/// `weights` must outlive the head.
struct LmHead {
  OuterWeights& weights;
  double norm_eps = 1e-6;
  double logit_scale = 1;         ///< logits = logit_scale * head(norm(hidden)); 1 adds no work
  double norm_weight_offset = 0;  ///< kernels/rms_norm/rms_norm.h
};
LmHead lm_head_of(const ModelConfig& config, OuterWeights& weights);

/// Buffers for m rows: hidden and normed in one dtype, rstd in fp32 (fp64 for fp64), logits in that dtype or in fp32 for bf16.
struct LmHeadRows {
  at::Tensor hidden;  ///< [m, D] the last layer's output; kept for the backward
  at::Tensor normed;  ///< [m, D] input of the head product
  at::Tensor rstd;    ///< [m]
  at::Tensor logits;  ///< [m, V]
};

/// Fills normed, rstd and logits from hidden. Without the adapter, trainable rows of the head are left out.
void lm_head_forward(const LmHead& head, LmHeadRows& rows, bool use_adapter = true, Product product = Product::kGemm);

/// Logits [m, V] fp32 for hidden [m, D], in new memory.
at::Tensor lm_head_logits(const LmHead& head, const at::Tensor& hidden, bool use_adapter, Product product);

/// `rows` come from a forward with the adapter; the caller has replaced logits by their gradient, which is overwritten. Writes
/// d_hidden [m, D] and accumulates the gradients of norm, head and trainable rows where defined. d_normed [m, D]: workspace.
void lm_head_backward(const LmHead& head, LmHeadRows& rows, at::Tensor& d_normed, at::Tensor& d_hidden);

}  // namespace lora_train::model
