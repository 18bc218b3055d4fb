// Gathers rows of a matrix and scatters them back: the supervised rows of the loss head. N rows, M gathered ones, D features.
// These kernels follow the kernel setting `embedding`.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// to[m] = from[rows[m]], or zeros if rows[m] >= N. from [N, D], to [M, D] of the same dtype; rows of both may be strided.
/// rows [M] int64, not negative.
void gather_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// to[rows[m]] = from[m], except where rows[m] >= N; other rows of `to` stay unchanged. from [M, D], to [N, D]; rows [M]
/// int64, not negative; entries below N are distinct.
void scatter_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// Lists that the device iterates over without the host. rows [M] int64, targets [M] int32, weights [M] fp32 or undefined.
struct RowLists {
  at::Tensor rows, targets, weights;
};

/// Takes the next m entries: picked.rows = lists.rows[next .. next + m], likewise targets and weights, then next += m. next []
/// int64 with next + m <= M. picked.weights is defined if lists.weights is. All contiguous and on the same device.
void take_next(const RowLists& lists, at::Tensor& next, RowLists& picked);

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void take_next_reference(const RowLists& lists, at::Tensor& next, RowLists& picked);

}  // namespace lora_train::kernels
