#include <ATen/ATen.h>

#include "lora_train/kernels/gather/gather.h"

namespace lora_train::kernels {

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  const int64_t N = from.size(0);
  if (N == 0) {
    to.zero_();
    return;
  }
  at::index_select_out(to, from, 0, rows.clamp_max(N - 1));
  to.masked_fill_((rows >= N).unsqueeze(1), 0);
}

void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  const int64_t N = to.size(0);
  at::Tensor wider = at::cat({to, at::zeros({1, to.size(1)}, to.options())});  // a row for what goes nowhere
  to.copy_(wider.index_copy_(0, rows.clamp_max(N), from).narrow(0, 0, N));
}

void take_next_reference(const RowLists& lists, at::Tensor& next, RowLists& picked) {
  const at::Tensor places = next + at::arange(picked.rows.size(0), lists.rows.options());
  at::index_select_out(picked.rows, lists.rows, 0, places);
  at::index_select_out(picked.targets, lists.targets, 0, places);
  if (lists.weights.defined()) at::index_select_out(picked.weights, lists.weights, 0, places);
  next.add_(picked.rows.size(0));
}

}  // namespace lora_train::kernels
