#include "lora_train/kernels/rms_norm/rms_norm.h"

#include "dispatch/arguments.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "rms_norm_parts.h"

namespace lora_train::kernels {

void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& y, at::Tensor& rstd,
                      double weight_offset, const at::Tensor& residual) {
  const char* const name = residual.defined() ? "rms_norm_add_forward" : "rms_norm_forward";
  check_floating(name, "x", x, {-1, -1});
  check_rows(name, "weight", weight, {x.size(1)}, x.scalar_type());
  check_rows(name, "y", y, x.sizes(), x.scalar_type());
  check_rows(name, "rstd", rstd, {x.size(0)}, math_dtype(x));
  if (residual.defined()) check_rows(name, "residual", residual, x.sizes(), x.scalar_type());
  const WorkScope recorded(name, WorkClass::kNorm, [&](Work& work) {
    work.reads("x", x).reads("weight", weight).reads("residual", residual).writes("y", y).writes("rstd", rstd);
  });
  const auto reference = [&] { rms_norm_forward_reference(x, weight, eps, y, rstd, weight_offset, residual); };
  run_kernel(KernelName::kRmsNorm, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    run_native<T>(how, rms_norm_forward_cpu<T>, &NativeKernelsOf<T>::rms_norm_forward, read_rows<T>(x),
                  NormWeight<T>{read<T>(weight), static_cast<float>(weight_offset)}, static_cast<float>(eps),
                  read_rows<T>(residual), write_rows<T>(y), write<float>(rstd), x.size(0), x.size(1));
  });
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       at::Tensor& dx, bool accumulate, at::Tensor* dweight, double weight_offset) {
  constexpr auto kName = "rms_norm_backward";
  check_floating(kName, "x", x, {-1, -1});
  check_rows(kName, "weight", weight, {x.size(1)}, x.scalar_type());
  check_rows(kName, "rstd", rstd, {x.size(0)}, math_dtype(x));
  check_like(kName, x, {{"dy", dy}, {"dx", dx}});
  const bool needs_dweight = dweight != nullptr && dweight->defined();
  if (needs_dweight) check_vector(kName, "dweight", *dweight, x.size(1), math_dtype(x));
  const WorkScope recorded(kName, WorkClass::kNorm, [&](Work& work) {
    const std::int64_t passes = needs_dweight ? 2 : 1;
    work.reads("dy", dy, passes).reads("x", x, passes).reads("weight", weight).reads("rstd", rstd, passes);
    work.launches(passes);
    accumulate ? work.updates("dx", dx) : work.writes("dx", dx);
    if (needs_dweight) work.updates("dweight", *dweight);
  });
  const auto reference = [&] {
    rms_norm_backward_reference(dy, x, weight, rstd, dx, accumulate, dweight, weight_offset);
  };
  run_kernel(KernelName::kRmsNorm, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    if (needs_dweight) {  // first: dx may be dy
      run_native<T>(how, rms_norm_weight_gradient_cpu<T>, &NativeKernelsOf<T>::rms_norm_weight_gradient,
                    read_rows<T>(dy), read_rows<T>(x), read<float>(rstd), write<float>(*dweight), x.size(0), x.size(1));
    }
    run_native<T>(how, rms_norm_backward_cpu<T>, &NativeKernelsOf<T>::rms_norm_backward, read_rows<T>(dy),
                  read_rows<T>(x), NormWeight<T>{read<T>(weight), static_cast<float>(weight_offset)}, read<float>(rstd),
                  write_rows<T>(dx), accumulate, x.size(0), x.size(1));
  });
}

void rms_norm_forward_reference(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& y,
                                at::Tensor& rstd, double weight_offset, const at::Tensor& residual) {
  const auto xf = to_math(x);
  const auto r = at::rsqrt(xf.square().mean(-1) + eps);
  rstd.copy_(r);
  const auto normed = xf * r.unsqueeze(-1);
  const auto scaled = weight_offset == 0 ? normed.to(x.scalar_type()) * weight
                                         : (normed * (to_math(weight) + weight_offset)).to(x.scalar_type());
  y.copy_(residual.defined() ? residual + scaled : scaled);
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
