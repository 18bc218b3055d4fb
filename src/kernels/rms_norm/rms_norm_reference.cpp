#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"

namespace lora_train::kernels {
namespace {

/// The norm in the dtype of x; writes rstd.
at::Tensor norm_of(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& rstd, double weight_offset) {
  const auto xf = to_math(x);
  const auto r = at::rsqrt(xf.square().mean(-1) + eps);
  rstd.copy_(r);
  const auto normed = xf * r.unsqueeze(-1);
  if (weight_offset == 0) return normed.to(x.scalar_type()) * weight;
  return (normed * (to_math(weight) + weight_offset)).to(x.scalar_type());
}

}  // namespace

void rms_norm_forward_reference(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& y,
                                at::Tensor& rstd, double weight_offset) {
  y.copy_(norm_of(x, weight, eps, rstd, weight_offset));
}

void rms_norm_add_forward_reference(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const at::Tensor& residual, at::Tensor& y, at::Tensor& rstd, double weight_offset) {
  y.copy_(residual + norm_of(x, weight, eps, rstd, weight_offset));
}

void rms_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& rstd, at::Tensor& dx, bool accumulate, at::Tensor* dweight,
                                 double weight_offset) {
  const auto r = rstd.unsqueeze(-1);
  const auto normed = to_math(x) * r;
  const auto dyf = to_math(dy);
  const auto g = dyf * (to_math(weight) + weight_offset);
  const auto d = (g - normed * (g * normed).mean(-1, /*keepdim=*/true)) * r;
  if (dweight != nullptr && dweight->defined()) {  // first: dx may be dy
    dweight->add_((dyf * normed).sum(0));
  }
  dx.copy_(accumulate ? to_math(dx) + d : d);
}

}  // namespace lora_train::kernels
