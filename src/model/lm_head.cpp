#include "lora_train/model/lm_head.h"

#include <ATen/ATen.h>

#include <memory>

#include "linear_product.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"

namespace lora_train::model {

LmHead lm_head_of(const ModelConfig& config, OuterWeights& weights) {
  return {weights, config.rms_norm_eps, 1 / config.logits_scaling, config.norm_weight_offset};
}

void lm_head_forward(const LmHead& head, LmHeadRows& rows, bool use_adapter, Product product) {
  const OuterWeights& weights = head.weights;
  kernels::rms_norm_forward(rows.hidden, weights.final_norm.weight, head.norm_eps, rows.normed, rows.rstd,
                            head.norm_weight_offset);
  linear_product(product, rows.normed, weights.head, {.alpha = head.logit_scale}, rows.logits);
  if (!use_adapter || !weights.head_rows.indices.defined()) return;
  kernels::run_or_capture(
      [product, scale = head.logit_scale, trained = weights.head_rows, normed = rows.normed, logits = rows.logits] {
        at::Tensor part = at::empty({logits.size(0), trained.indices.size(0)}, logits.options());
        linear_product(product, normed, trained.values.to(normed.scalar_type()), {.alpha = scale}, part);
        logits.index_copy_(1, trained.indices, part);
      });
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
  const kernels::TrainableRows& trained = weights.head_rows;
  const auto d_trained = std::make_shared<at::Tensor>();  // from the first part of the work to the second
  if (trained.indices.defined()) {
    kernels::run_or_capture([d_trained, indices = trained.indices, grads = trained.grads, dlogits, normed = rows.normed,
                             scale = head.logit_scale]() mutable {
      *d_trained = dlogits.index_select(1, indices);
      kernels::gemm(d_trained->t(), normed, grads, {.accumulate = true, .alpha = scale});
      dlogits.index_fill_(1, indices, 0);
    });
  }
  if (weights.grad_head.defined()) {
    kernels::gemm(dlogits.t(), rows.normed, weights.grad_head, {.accumulate = true, .alpha = head.logit_scale});
  }
  kernels::gemm(dlogits, weights.head, d_normed, {.alpha = head.logit_scale});
  if (trained.indices.defined()) {
    kernels::run_or_capture([d_trained, values = trained.values, d_normed, scale = head.logit_scale]() mutable {
      kernels::gemm(*d_trained, values.to(d_normed.scalar_type()), d_normed, {.accumulate = true, .alpha = scale});
    });
  }
  at::Tensor& dweight = weights.final_norm.grad;
  kernels::rms_norm_backward(d_normed, rows.hidden, weights.final_norm.weight, rows.rstd, d_hidden, false,
                             dweight.defined() ? &dweight : nullptr, head.norm_weight_offset);
}

}  // namespace lora_train::model
