// Token embedding with an optional list of trainable rows, and rows picked from a matrix and put back. V vocabulary, D
// hidden, N tokens, k trainable rows, M picked ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lora_train::kernels {

/// Rows of the embedding (and of a tied head) that are trained in place of the frozen ones.
struct TrainableRows {
  at::Tensor indices;  ///< [k] int64, distinct, in [0, V); undefined = none
  at::Tensor values;   ///< [k, D] fp32 masters
  at::Tensor grads;    ///< [k, D] fp32, accumulated into
};

/// out [N, D] (dtype of weight, or fp32 for bf16 on a CPU) = scale * weight[ids], with trainable rows in place of the
/// frozen ones. ids [N] int32. Trainable rows are rounded to that dtype first; the product is computed in fp32 (fp64)
/// and rounded once. For Gemma, the caller rounds the scale itself to the dtype; for Granite it does not.
void embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const TrainableRows& rows, at::Tensor& out,
                       double scale = 1);

/// Adds scale times the gradient of every token to dweight [V, D] fp32 (undefined: frozen) and to rows.grads. dout [N,
/// D]. order [N] int32, contiguous: order_by_id of the ids. Only our CUDA kernel needs it; it sums in that order.
void embedding_backward(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight, TrainableRows& rows,
                        const at::Tensor& order = {}, double scale = 1);

/// The permutation that sorts tokens stably by id: ids[order[0]] <= ids[order[1]] <= ...
std::vector<std::int32_t> order_by_id(std::span<const std::int32_t> ids);

void embedding_forward_reference(const at::Tensor& ids, const at::Tensor& weight, const TrainableRows& rows,
                                 at::Tensor& out, double scale = 1);
void embedding_backward_reference(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight,
                                  TrainableRows& rows, double scale = 1);

// The supervised rows of the loss head. These kernels follow the kernel setting `embedding`.

/// to[m] = from[rows[m]], or zeros if rows[m] >= N. from [N, D], to [M, D] of the same dtype; rows of both may be
/// strided. rows [M] int64, not negative.
void gather_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// to[rows[m]] = from[m], except where rows[m] >= N; other rows of `to` stay unchanged. from [M, D], to [N, D]; rows
/// [M] int64, not negative; entries below N are distinct.
void scatter_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// Lists that the device iterates over without the host. rows [M] int64, targets [M] int32, weights [M] fp32 or
/// undefined.
struct RowLists {
  at::Tensor rows, targets, weights;
};

/// Takes the next m entries: picked.rows = lists.rows[next .. next + m], likewise targets and weights, then next += m.
/// next [] int64 with next + m <= M. picked.weights is defined if lists.weights is. All contiguous and on the same
/// device.
void take_next(const RowLists& lists, at::Tensor& next, RowLists& picked);

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void take_next_reference(const RowLists& lists, at::Tensor& next, RowLists& picked);

}  // namespace lora_train::kernels
