#include <ATen/ATen.h>

#include "lora_train/kernels/gather.h"

namespace lora_train::kernels {

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  at::index_select_out(to, from, 0, rows);
}

void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  to.zero_();
  to.index_copy_(0, rows, from);
}

}  // namespace lora_train::kernels
