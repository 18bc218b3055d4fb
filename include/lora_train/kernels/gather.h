// Rows picked out of a matrix, and put back: the supervised rows of the loss head. N rows, M picked ones, D features.
// Setting `embedding` chooses for these kernels too.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// to[m] = from[rows[m]]; zeros where rows[m] is N or more. from [N, D], to [M, D] of the same dtype, rows of both may be
/// strided. rows [M] int64, not negative.
void gather_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// to[rows[m]] = from[m], nothing where rows[m] is N or more; other rows of `to` stay. from [M, D], to [N, D]; rows [M]
/// int64, not negative, distinct below N.
void scatter_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// Lists that the device iterates over without the host. rows [M] int64, targets [M] int32, weights [M] fp32 or undefined.
struct RowLists {
  at::Tensor rows, targets, weights;
};

/// The next m entries: picked.rows = lists.rows[next .. next + m], targets and weights alike, and then next += m. next []
/// int64 with next + m <= M. picked.weights is defined where lists.weights is. All contiguous, all on the same device.
void take_next(const RowLists& lists, at::Tensor& next, RowLists& picked);

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void take_next_reference(const RowLists& lists, at::Tensor& next, RowLists& picked);

}  // namespace lora_train::kernels
