#include "lora_train/model/lm_head.h"

#include <ATen/ATen.h>

#include "linear_product.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/rms_norm.h"

namespace lora_train::model {
namespace {

bool has_trainable_rows(const OuterWeights& weights) { return weights.is_tied && weights.rows.indices.defined(); }

}  // namespace

LmHead lm_head_of(const ModelConfig& config, OuterWeights& weights) {
  return {weights, config.rms_norm_eps, 1 / config.logits_scaling, config.norm_weight_offset};
}

void lm_head_forward(const LmHead& head, LmHeadRows& rows, bool use_adapter, Product product) {
  const OuterWeights& weights = head.weights;
  kernels::rms_norm_forward(rows.hidden, weights.final_norm.weight, head.norm_eps, rows.normed, rows.rstd,
                            head.norm_weight_offset);
  linear_product(product, rows.normed, weights.head, {.alpha = head.logit_scale}, rows.logits);
  if (!use_adapter || !has_trainable_rows(weights)) return;
  at::Tensor trained = at::empty({rows.logits.size(0), weights.rows.indices.size(0)}, rows.logits.options());
  linear_product(product, rows.normed, weights.rows.values.to(rows.normed.scalar_type()), {.alpha = head.logit_scale},
                 trained);
  rows.logits.index_copy_(1, weights.rows.indices, trained);
}

at::Tensor lm_head_logits(const LmHead& head, const at::Tensor& hidden, bool use_adapter, Product product) {
  const at::TensorOptions fp32 = hidden.options().dtype(at::kFloat);
  LmHeadRows rows{hidden, at::empty_like(hidden), at::empty({hidden.size(0)}, fp32),
                  at::empty({hidden.size(0), head.weights.head.size(0)}, fp32)};
  lm_head_forward(head, rows, use_adapter, product);
  return rows.logits;
}

void lm_head_backward(const LmHead& head, LmHeadRows& rows, at::Tensor& d_normed, at::Tensor& d_hidden) {
  OuterWeights& weights = head.weights;
  at::Tensor& dlogits = rows.logits;
  at::Tensor d_trained;
  if (has_trainable_rows(weights)) {
    d_trained = dlogits.index_select(1, weights.rows.indices);
    weights.rows.grads.add_(at::mm(d_trained.t(), rows.normed), head.logit_scale);
    dlogits.index_fill_(1, weights.rows.indices, 0);
  }
  if (weights.grad_head.defined()) {
    kernels::gemm(dlogits.t(), rows.normed, weights.grad_head, {.accumulate = true, .alpha = head.logit_scale});
  }
  kernels::gemm(dlogits, weights.head, d_normed, {.alpha = head.logit_scale});
  if (d_trained.defined()) {
    kernels::gemm(d_trained, weights.rows.values.to(d_normed.scalar_type()), d_normed,
                  {.accumulate = true, .alpha = head.logit_scale});
  }
  at::Tensor& dweight = weights.final_norm.grad;
  kernels::rms_norm_backward(d_normed, rows.hidden, weights.final_norm.weight, rows.rstd, d_hidden, false,
                             dweight.defined() ? &dweight : nullptr, head.norm_weight_offset);
}

}  // namespace lora_train::model
