// Rows picked out of a matrix, and put back: the supervised rows of the loss head. N rows, M picked ones, D features.
// Setting `embedding` chooses for these kernels too.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// to[m] = from[rows[m]]. from [N, D], to [M, D] of the same dtype, rows of both may be strided. rows [M] int64 in
/// [0, N).
void gather_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

/// to[rows[m]] = from[m], all other rows of `to` zero. from [M, D], to [N, D]; rows [M] int64 ascending and distinct.
void scatter_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);
void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to);

}  // namespace lora_train::kernels
