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

/// The next m entries of lists that a device goes through by itself: picked_rows = rows[next .. next + m], picked_targets
/// alike, and then next += m. rows [M] int64, targets [M] int32; next [] int64 with next + m <= M; picked_rows [m] and
/// picked_targets [m]. All contiguous, all on the same device.
void take_next(const at::Tensor& rows, const at::Tensor& targets, at::Tensor& next, at::Tensor& picked_rows,
               at::Tensor& picked_targets);

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void take_next_reference(const at::Tensor& rows, const at::Tensor& targets, at::Tensor& next, at::Tensor& picked_rows,
                         at::Tensor& picked_targets);

}  // namespace lora_train::kernels
