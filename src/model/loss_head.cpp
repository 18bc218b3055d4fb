#include "lora_train/model/loss_head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/cross_entropy.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/rms_norm.h"

// M supervised rows, m rows of a chunk, D hidden, V vocabulary, k trainable rows.
namespace lora_train::model {
namespace {

constexpr std::size_t kCalibrationBins = 15;

/// Logits [m, V] of normed rows [m, D], trainable rows in place of the frozen ones.
void head_forward(const OuterWeights& weights, const at::Tensor& normed, at::Tensor& logits) {
  kernels::gemm(normed, weights.head.t(), logits);
  if (!weights.is_tied || !weights.rows.indices.defined()) return;
  const at::Tensor values = weights.rows.values.to(normed.scalar_type());
  logits.index_copy_(1, weights.rows.indices, at::mm(normed, values.t()));
}

/// From dlogits [m, V]: d_normed [m, D] written, gradients of head and trainable rows added. dlogits are used up.
void head_backward(OuterWeights& weights, const at::Tensor& normed, at::Tensor& dlogits, at::Tensor& d_normed) {
  const bool has_rows = weights.is_tied && weights.rows.indices.defined();
  at::Tensor d_rows;
  if (has_rows) {
    d_rows = dlogits.index_select(1, weights.rows.indices);
    weights.rows.grads.add_(at::mm(d_rows.t(), normed));
    dlogits.index_fill_(1, weights.rows.indices, 0);
  }
  if (weights.grad_head.defined()) {
    kernels::gemm(dlogits.t(), normed, weights.grad_head, {.accumulate = true});
  }
  kernels::gemm(dlogits, weights.head, d_normed);
  if (has_rows) kernels::gemm(d_rows, weights.rows.values.to(normed.scalar_type()), d_normed, {.accumulate = true});
}

void count_statistics(const kernels::CrossEntropyOutput& output, LossSums& sums) {
  const at::Tensor correct = output.correct.cpu(), confidence = output.confidence.to(at::kFloat).cpu();
  const bool* is_correct = correct.const_data_ptr<bool>();
  const float* share = confidence.const_data_ptr<float>();
  for (int64_t row = 0; row < correct.numel(); ++row) {
    // NaN, and all of 1, into the last bin.
    const bool is_inside = share[row] >= 0 && share[row] < 1;
    const auto bin = is_inside ? static_cast<std::size_t>(share[row] * static_cast<float>(kCalibrationBins)) : kCalibrationBins - 1;
    LossSums::Bin& target = sums.bins[std::min<std::size_t>(bin, kCalibrationBins - 1)];
    ++target.count;
    target.confidence += static_cast<double>(share[row]);
    target.correct += is_correct[row] ? 1 : 0;
    sums.num_correct += is_correct[row] ? 1 : 0;
  }
}

int64_t rows_per_chunk(const OuterWeights& weights, const LossHeadOptions& options, int64_t M) {
  const int64_t row_bytes = weights.head.size(0) * static_cast<int64_t>(weights.head.element_size());
  return std::clamp<int64_t>(options.chunk_bytes / row_bytes, std::min<int64_t>(M, 16), M);
}

}  // namespace

LossSums loss_head(const at::Tensor& hidden, const Batch& batch, OuterWeights& weights, const LossHeadOptions& options,
                   at::Tensor* d_hidden) {
  LossSums sums;
  sums.num_tokens = batch.supervised.size(0);
  if (options.with_statistics) sums.bins.resize(kCalibrationBins);
  if (options.with_gradient) d_hidden->zero_();
  if (sums.num_tokens == 0) return sums;

  const int64_t M = sums.num_tokens;
  const at::Tensor picked = hidden.index_select(0, batch.supervised);
  at::Tensor normed = at::empty_like(picked), rstd = at::empty({M}, picked.options().dtype(at::kFloat));
  kernels::rms_norm_forward(picked, weights.final_norm.weight, options.norm_eps, normed, rstd);

  const int64_t chunk = rows_per_chunk(weights, options, M);
  at::Tensor d_normed = options.with_gradient ? at::empty_like(picked) : at::Tensor();
  at::Tensor logits_buffer = at::empty({chunk, weights.head.size(0)}, picked.options());
  for (int64_t begin = 0; begin < M; begin += chunk) {
    const int64_t m = std::min(chunk, M - begin);
    const at::Tensor rows = normed.narrow(0, begin, m);
    at::Tensor logits = logits_buffer.narrow(0, 0, m);
    head_forward(weights, rows, logits);
    kernels::CrossEntropyOutput output;
    output.losses = at::empty({m}, rstd.options());
    if (options.with_statistics) {
      output.correct = at::empty({m}, rstd.options().dtype(at::kBool));
      output.confidence = at::empty({m}, rstd.options());
    }
    kernels::cross_entropy_in_place(logits, batch.targets.narrow(0, begin, m), options.gradient_scale,
                                    options.with_gradient, output);
    sums.loss += output.losses.sum(at::kDouble).item<double>();
    if (options.with_statistics) count_statistics(output, sums);
    if (!options.with_gradient) continue;
    at::Tensor d_rows = d_normed.narrow(0, begin, m);
    head_backward(weights, rows, logits, d_rows);
  }
  if (options.with_gradient) {
    at::Tensor d_picked = at::empty_like(picked);
    kernels::rms_norm_backward(d_normed, picked, weights.final_norm.weight, rstd, d_picked, false,
                               weights.final_norm.grad.defined() ? &weights.final_norm.grad : nullptr);
    d_hidden->index_copy_(0, batch.supervised, d_picked);
  }
  return sums;
}

}  // namespace lora_train::model
