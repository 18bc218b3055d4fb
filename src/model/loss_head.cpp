#include "lora_train/model/loss_head.h"

#include <algorithm>
#include <memory>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"

// M supervised rows, m rows of a chunk, D hidden, V vocabulary.

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
  const auto d_trained = std::make_shared<at::Tensor>();  // passed from the first part of the work to the second
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
  kernels::rms_norm_backward(d_normed, rows.hidden, weights.final_norm.weight, rows.rstd, d_hidden, false,
                             &weights.final_norm.grad, head.norm_weight_offset);
}

namespace {

int64_t rows_per_chunk(const OuterWeights& weights, const LossHeadOptions& options) {
  const int64_t row_bytes = weights.head.size(0) * static_cast<int64_t>(weights.head.element_size());
  const int64_t M = std::max<int64_t>(options.max_rows, 1);
  return std::clamp<int64_t>(options.chunk_bytes / row_bytes, std::min<int64_t>(M, 16), M);
}

kernels::RowLists narrow_lists(const kernels::RowLists& lists, int64_t begin, int64_t m) {
  const auto part = [&](const at::Tensor& list) { return list.defined() ? list.narrow(0, begin, m) : list; };
  return {part(lists.rows), part(lists.targets), part(lists.weights)};
}

kernels::RowLists lists_of(const Batch& batch) { return {batch.supervised, batch.targets, batch.weights}; }

}  // namespace

LossHead::LossHead(const LmHead& head, const LossHeadOptions& options)
    : head_(head), chunk_rows_(rows_per_chunk(head.weights, options)) {
  const OuterWeights& weights = head.weights;
  const int64_t m = chunk_rows_, V = weights.head.size(0), D = weights.head.size(1);
  const at::ScalarType dtype = weights.head.scalar_type();
  const at::ScalarType math = dtype == at::kDouble ? at::kDouble : at::kFloat;
  rows_ = {make({m, D}, dtype), make({m, D}, dtype), make({m}, math), make({m, V}, dtype)};
  losses_ = make({m}, math);
  constexpr int64_t kTemporaries = 4;
  if (options.has_soft_targets) bytes_ += kTemporaries * m * V * static_cast<int64_t>(c10::elementSize(math));
  correct_ = make({m}, at::kBool);
  confidence_ = make({m}, at::kFloat);
  if (!options.needs_backward) return;
  d_normed_ = make({m, D}, dtype);
  d_hidden_ = make({m, D}, dtype);
  next_ = make({}, at::kLong);
  next_lists_ = {make({m}, at::kLong), make({m}, at::kInt), options.has_weights ? make({m}, at::kFloat) : at::Tensor()};
}

at::Tensor LossHead::make(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor buffer = at::empty(sizes, head_.weights.head.options().dtype(dtype));
  bytes_ += static_cast<int64_t>(buffer.nbytes());
  return buffer;
}

LossHead::Chunk LossHead::forward(const at::Tensor& hidden, const kernels::RowLists& lists, bool use_adapter) {
  const int64_t m = lists.rows.size(0);
  const auto part = [m](const at::Tensor& buffer) { return buffer.narrow(0, 0, m); };
  Chunk chunk{
      lists, {part(rows_.hidden), part(rows_.normed), part(rows_.rstd), part(rows_.logits)}, {part(losses_), {}, {}}};
  kernels::gather_rows(hidden, lists.rows, chunk.rows.hidden);
  lm_head_forward(head_, chunk.rows, use_adapter);
  return chunk;
}

void LossHead::train_chunk(Chunk& chunk, const at::Tensor& denominator, at::Tensor& loss_sum, at::Tensor& d_hidden) {
  kernels::cross_entropy_in_place(chunk.rows.logits, chunk.lists.targets, chunk.lists.weights, denominator,
                                  chunk.output);
  finish_chunk(chunk, loss_sum, d_hidden);
}

void LossHead::finish_chunk(Chunk& chunk, at::Tensor& loss_sum, at::Tensor& d_hidden) {
  const kernels::RowLists& lists = chunk.lists;
  if (loss_sum.defined()) kernels::add_losses(chunk.output.losses, lists.weights, loss_sum);
  const int64_t m = lists.rows.size(0);
  at::Tensor d_normed = d_normed_.narrow(0, 0, m), d_rows = d_hidden_.narrow(0, 0, m);
  lm_head_backward(head_, chunk.rows, d_normed, d_rows);
  kernels::scatter_rows(d_rows, lists.rows, d_hidden);
}

template <class Use>
void LossHead::for_each_chunk(const at::Tensor& hidden, const kernels::RowLists& lists, int64_t num_rows,
                              bool use_adapter, const Use& use) {
  for (int64_t first = 0; first < num_rows; first += chunk_rows_) {
    const int64_t m = std::min(chunk_rows_, lists.rows.size(0) - first);
    Chunk chunk = forward(hidden, narrow_lists(lists, first, m), use_adapter);
    use(chunk, first);
  }
}

void LossHead::train_all(const at::Tensor& hidden, const kernels::RowLists& lists, int64_t num_rows,
                         const at::Tensor& denominator, at::Tensor& loss_sum, at::Tensor& d_hidden) {
  begin(d_hidden);
  for_each_chunk(hidden, lists, num_rows, /*use_adapter=*/true,
                 [&](Chunk& chunk, int64_t) { train_chunk(chunk, denominator, loss_sum, d_hidden); });
}

void LossHead::begin(at::Tensor& d_hidden) {
  kernels::run_or_capture([d_hidden, next = next_] {
    d_hidden.zero_();
    next.zero_();
  });
}

void LossHead::train_next(const at::Tensor& hidden, const Batch& batch, const at::Tensor& denominator,
                          at::Tensor& loss_sum, at::Tensor& d_hidden) {
  kernels::RowLists lists = next_lists_;
  if (!batch.weights.defined()) lists.weights.reset();
  kernels::take_next(lists_of(batch), next_, lists);
  Chunk chunk = forward(hidden, lists, /*use_adapter=*/true);
  train_chunk(chunk, denominator, loss_sum, d_hidden);
}

void LossHead::train(const at::Tensor& hidden, const Batch& batch, const at::Tensor& denominator, at::Tensor& loss_sum,
                     at::Tensor& d_hidden) {
  train_all(hidden, lists_of(batch), batch.num_trained_tokens(), denominator, loss_sum, d_hidden);
}

void LossHead::train_soft(const at::Tensor& hidden, const Batch& batch, const kernels::SoftTargetOptions& options,
                          const at::Tensor& denominator, at::Tensor& loss_sum, at::Tensor& d_hidden) {
  begin(d_hidden);
  const int64_t M = batch.num_trained_tokens();
  for_each_chunk(
      hidden, narrow_lists(lists_of(batch), 0, M), M, /*use_adapter=*/true, [&](Chunk& chunk, int64_t first) {
        const int64_t m = chunk.lists.rows.size(0);
        const kernels::SoftTargets soft{batch.soft.ids.narrow(0, first, m), batch.soft.log_probs.narrow(0, first, m)};
        kernels::soft_cross_entropy_in_place(chunk.rows.logits, chunk.lists.targets, chunk.lists.weights, soft, options,
                                             denominator, chunk.output.losses);
        finish_chunk(chunk, loss_sum, d_hidden);
      });
}

void LossHead::backward(const at::Tensor& hidden, const Batch& batch, const at::Tensor& token_weights,
                        const at::Tensor& denominator, at::Tensor& d_hidden) {
  const int64_t M = batch.num_trained_tokens();
  at::Tensor no_sum;
  train_all(hidden, {batch.supervised.narrow(0, 0, M), batch.targets.narrow(0, 0, M), token_weights}, M, denominator,
            no_sum, d_hidden);
}

void LossHead::log_probs(const at::Tensor& hidden, const Batch& batch, at::Tensor& log_probs, bool use_adapter) {
  const int64_t M = batch.num_trained_tokens();
  for_each_chunk(hidden, narrow_lists(lists_of(batch), 0, M), M, use_adapter, [&](Chunk& chunk, int64_t first) {
    kernels::cross_entropy_in_place(chunk.rows.logits, chunk.lists.targets, {}, /*denominator=*/{}, chunk.output);
    at::Tensor part = log_probs.narrow(0, first, chunk.lists.rows.size(0));
    at::neg_out(part, chunk.output.losses);
  });
}

at::Tensor LossHead::evaluate(const at::Tensor& hidden, const Batch& batch, bool use_adapter) {
  const int64_t M = batch.num_trained_tokens();
  // [M] losses, [M] confidences, [M] 1 if correct, and the sum of losses of each chunk.
  at::Tensor values = at::empty({3 * M + num_chunks(batch)}, losses_.options().dtype(at::kDouble));
  for_each_chunk(hidden, narrow_lists(lists_of(batch), 0, M), M, use_adapter, [&](Chunk& chunk, int64_t first) {
    const int64_t m = chunk.lists.rows.size(0);
    const auto part = [&](int64_t begin) { return values.narrow(0, begin + first, m); };
    chunk.output.correct = correct_.narrow(0, 0, m);
    chunk.output.confidence = confidence_.narrow(0, 0, m);
    kernels::cross_entropy_in_place(chunk.rows.logits, chunk.lists.targets, {}, /*denominator=*/{}, chunk.output);
    at::Tensor losses = part(0).copy_(chunk.output.losses);
    if (chunk.lists.weights.defined()) losses.mul_(chunk.lists.weights);
    part(M).copy_(chunk.output.confidence);
    part(2 * M).copy_(chunk.output.correct);
    values[3 * M + first / chunk_rows_].copy_(losses.sum());
  });
  return values;
}

LossSums loss_sums(const at::Tensor& values, int64_t num_tokens) {
  const double* const losses = values.const_data_ptr<double>();
  const double *const confidences = losses + num_tokens, *const correct = confidences + num_tokens;
  LossSums sums{.num_tokens = num_tokens,
                .bins = std::vector<LossSums::Bin>(kCalibrationBins),
                .losses = {losses, losses + num_tokens}};
  for (int64_t i = 3 * num_tokens; i < values.numel(); ++i) sums.loss += losses[i];
  for (int64_t row = 0; row < num_tokens; ++row) {
    const auto confidence = static_cast<float>(confidences[row]);
    // NaN and 1.0 go to the last bin.
    const bool is_inside = confidence >= 0 && confidence < 1;
    const auto bin =
        is_inside ? static_cast<std::size_t>(confidence * static_cast<float>(kCalibrationBins)) : kCalibrationBins - 1;
    LossSums::Bin& target = sums.bins[std::min<std::size_t>(bin, kCalibrationBins - 1)];
    const auto is_correct = static_cast<int64_t>(correct[row]);
    ++target.count;
    target.confidence += confidences[row];
    target.correct += is_correct;
    sums.num_correct += is_correct;
  }
  return sums;
}

}  // namespace lora_train::model
