#include "lora_train/kernels/gemm.h"

#include "checks.h"
#include "lora_train/base/error.h"

namespace lora_train::kernels {
namespace {

void check_operands(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y, const GemmExtras& extras) {
  check_shape("gemm", "a", a, {-1, -1});
  check_floating("gemm", "a", a);
  check_shape("gemm", "b", b, {a.size(1), -1});
  check_dtype("gemm", "b", b, a.scalar_type());
  check_rows("gemm", "y", y, {a.size(0), b.size(1)});
  if (a.scalar_type() != at::kBFloat16 || y.scalar_type() != at::kFloat) check_dtype("gemm", "y", y, a.scalar_type());
  if (extras.bias.defined()) {
    check_shape("gemm", "bias", extras.bias, {b.size(1)});
    check_dtype("gemm", "bias", extras.bias, y.scalar_type());
    check_contiguous("gemm", "bias", extras.bias);
  }
  if (!extras.residual.defined()) return;
  check_rows("gemm", "residual", extras.residual, y.sizes());
  check_dtype("gemm", "residual", extras.residual, y.scalar_type());
  if (extras.accumulate) throw ShapeError("gemm", "residual and accumulate together; expected at most one of them");
  if (extras.residual.is_same(y) || (y.numel() > 0 && extras.residual.const_data_ptr() == y.const_data_ptr())) {
    throw ShapeError("gemm", "residual is y itself; ask for accumulate instead");
  }
}

}  // namespace

void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  check_operands(a, b, y, extras);
  gemm_reference(a, b, y, extras);
}

}  // namespace lora_train::kernels
