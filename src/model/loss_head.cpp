#include "lora_train/model/loss_head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/cross_entropy.h"
#include "lora_train/kernels/gather.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/graph.h"
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

int64_t rows_per_chunk(const OuterWeights& weights, const LossHeadOptions& options) {
  const int64_t row_bytes = weights.head.size(0) * static_cast<int64_t>(weights.head.element_size());
  const int64_t M = std::max<int64_t>(options.max_rows, 1);
  return std::clamp<int64_t>(options.chunk_bytes / row_bytes, std::min<int64_t>(M, 16), M);
}

}  // namespace

LossHead::LossHead(OuterWeights& weights, const LossHeadOptions& options)
    : weights_(weights), norm_eps_(options.norm_eps), chunk_rows_(rows_per_chunk(weights, options)) {
  const int64_t m = chunk_rows_, V = weights.head.size(0), D = weights.head.size(1);
  const at::ScalarType dtype = weights.head.scalar_type();
  const at::ScalarType math = dtype == at::kDouble ? at::kDouble : at::kFloat;
  picked_ = make({m, D}, dtype);
  normed_ = make({m, D}, dtype);
  logits_ = make({m, V}, dtype);
  rstd_ = make({m}, math);
  losses_ = make({m}, math);
  correct_ = make({m}, at::kBool);
  confidence_ = make({m}, at::kFloat);
  if (!options.needs_backward) return;
  d_normed_ = make({m, D}, dtype);
  d_picked_ = make({m, D}, dtype);
  next_ = make({}, at::kLong);
  slots_ = make({m}, at::kLong);
  targets_ = make({m}, at::kInt);
}

at::Tensor LossHead::make(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor buffer = at::empty(sizes, weights_.head.options().dtype(dtype));
  bytes_ += static_cast<int64_t>(buffer.nbytes());
  return buffer;
}

LossHead::Chunk LossHead::forward(const at::Tensor& hidden, const at::Tensor& slots, const at::Tensor& targets) {
  const int64_t m = slots.size(0);
  const auto cut = [m](const at::Tensor& buffer) { return buffer.narrow(0, 0, m); };
  Chunk chunk{slots, targets, cut(picked_), cut(normed_), cut(logits_), cut(rstd_), {cut(losses_), {}, {}}};
  kernels::gather_rows(hidden, chunk.slots, chunk.picked);
  kernels::rms_norm_forward(chunk.picked, weights_.final_norm.weight, norm_eps_, chunk.normed, chunk.rstd);
  head_forward(weights_, chunk.normed, chunk.logits);
  return chunk;
}

void LossHead::backward(Chunk& chunk, at::Tensor& d_hidden) {
  const int64_t m = chunk.picked.size(0);
  at::Tensor d_normed = d_normed_.narrow(0, 0, m), d_picked = d_picked_.narrow(0, 0, m);
  head_backward(weights_, chunk.normed, chunk.logits, d_normed);
  at::Tensor& dweight = weights_.final_norm.grad;
  kernels::rms_norm_backward(d_normed, chunk.picked, weights_.final_norm.weight, chunk.rstd, d_picked, false,
                             dweight.defined() ? &dweight : nullptr);
  kernels::scatter_rows(d_picked, chunk.slots, d_hidden);
}

void LossHead::train_rows(const at::Tensor& hidden, const at::Tensor& slots, const at::Tensor& targets,
                          const at::Tensor& num_tokens, at::Tensor& loss_sum, at::Tensor& d_hidden) {
  Chunk chunk = forward(hidden, slots, targets);
  kernels::cross_entropy_in_place(chunk.logits, chunk.targets, num_tokens, chunk.output);
  kernels::add_losses(chunk.output.losses, loss_sum);
  backward(chunk, d_hidden);
}

void LossHead::begin(at::Tensor& d_hidden) {
  kernels::do_or_record([d_hidden, next = next_] {
    d_hidden.zero_();
    next.zero_();
  });
}

void LossHead::train_next(const at::Tensor& hidden, const Batch& batch, const at::Tensor& num_tokens,
                          at::Tensor& loss_sum, at::Tensor& d_hidden) {
  kernels::take_next(batch.supervised, batch.targets, next_, slots_, targets_);
  train_rows(hidden, slots_, targets_, num_tokens, loss_sum, d_hidden);
}

void LossHead::train(const at::Tensor& hidden, const Batch& batch, const at::Tensor& num_tokens, at::Tensor& loss_sum,
                     at::Tensor& d_hidden) {
  begin(d_hidden);
  for (int64_t first = 0; first < batch.num_trained_tokens(); first += chunk_rows_) {
    const int64_t m = std::min(chunk_rows_, batch.supervised.size(0) - first);
    train_rows(hidden, batch.supervised.narrow(0, first, m), batch.targets.narrow(0, first, m), num_tokens, loss_sum,
               d_hidden);
  }
}

LossSums LossHead::evaluate(const at::Tensor& hidden, const Batch& batch) {
  LossSums sums;
  sums.num_tokens = batch.supervised.size(0);
  sums.bins.resize(kCalibrationBins);
  for (int64_t begin = 0; begin < sums.num_tokens; begin += chunk_rows_) {
    const int64_t m = std::min(chunk_rows_, sums.num_tokens - begin);
    Chunk chunk = forward(hidden, batch.supervised.narrow(0, begin, m), batch.targets.narrow(0, begin, m));
    chunk.output.correct = correct_.narrow(0, 0, m);
    chunk.output.confidence = confidence_.narrow(0, 0, m);
    kernels::cross_entropy_in_place(chunk.logits, chunk.targets, /*num_tokens=*/{}, chunk.output);
    sums.loss += chunk.output.losses.sum(at::kDouble).item<double>();
    count_statistics(chunk.output, sums);
  }
  return sums;
}

}  // namespace lora_train::model
