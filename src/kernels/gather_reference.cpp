#include <ATen/ATen.h>

#include "lora_train/kernels/gather.h"

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

void take_next_reference(const at::Tensor& rows, const at::Tensor& targets, at::Tensor& next, at::Tensor& picked_rows,
                         at::Tensor& picked_targets) {
  const at::Tensor places = next + at::arange(picked_rows.size(0), rows.options());
  at::index_select_out(picked_rows, rows, 0, places);
  at::index_select_out(picked_targets, targets, 0, places);
  next.add_(picked_rows.size(0));
}

}  // namespace lora_train::kernels
