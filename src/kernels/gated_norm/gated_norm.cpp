#include "lora_train/kernels/gated_norm/gated_norm.h"

#include "dispatch/arguments.h"
#include "gated_norm_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

GatedNormShape gated_norm_shape(const at::Tensor& x, const at::Tensor& weight) {
  return {x.size(0), x.size(1) / weight.size(0), weight.size(0)};
}

void check_gated_norm(const char* kernel, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight) {
  check_floating(kernel, "x", x, {-1, -1});
  check_shape(kernel, "weight", weight, {-1});
  const std::int64_t E = weight.size(0);
  if (E == 0 || x.size(1) % E != 0) {
    throw ShapeError(std::string(kernel) + ": weight", "{} elements, expected a divisor of {}", E, x.size(1));
  }
  check_vector(kernel, "weight", weight, E, x.scalar_type());
  check_rows(kernel, "gate", gate, x.sizes(), x.scalar_type());
}

/// The heads in the dtype of the arithmetic.
at::Tensor heads_of_rows(const at::Tensor& x, const at::Tensor& weight) {
  return to_math(x).unflatten(1, {x.size(1) / weight.size(0), weight.size(0)});
}

}  // namespace

void gated_norm_forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        at::Tensor& y) {
  constexpr auto kName = "gated_norm_forward";
  check_gated_norm(kName, x, gate, weight);
  check_rows(kName, "y", y, x.sizes(), x.scalar_type());
  const WorkScope recorded(kName, WorkClass::kGatedDelta, [&](Work& work) {
    work.reads("x", x).reads("gate", gate).reads("weight", weight).writes("y", y);
  });
  const auto reference = [&] { gated_norm_forward_reference(x, gate, weight, eps, y); };
  run_kernel(KernelName::kGatedDelta, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    run_native<T>(how, gated_norm_forward_cpu<T>, &NativeKernelsOf<T>::gated_norm_forward, read_rows<T>(x),
                  read_rows<T>(gate), read<T>(weight), static_cast<float>(eps), write_rows<T>(y),
                  gated_norm_shape(x, weight));
  });
}

void gated_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                         double eps, at::Tensor& dx, at::Tensor& d_gate, at::Tensor& dweight) {
  constexpr auto kName = "gated_norm_backward";
  check_gated_norm(kName, x, gate, weight);
  check_like(kName, x, {{"dy", dy}, {"dx", dx}, {"d_gate", d_gate}});
  const bool needs_dweight = dweight.defined();
  if (needs_dweight) check_vector(kName, "dweight", dweight, weight.size(0), math_dtype(x));
  const WorkScope recorded(kName, WorkClass::kGatedDelta, [&](Work& work) {
    const std::int64_t passes = needs_dweight ? 2 : 1;
    work.reads("dy", dy, passes).reads("x", x, passes).reads("gate", gate, passes).reads("weight", weight);
    work.writes("dx", dx).writes("d_gate", d_gate);
    if (needs_dweight) work.updates("dweight", dweight).launches(3);
  });
  const auto reference = [&] { gated_norm_backward_reference(dy, x, gate, weight, eps, dx, d_gate, dweight); };
  run_kernel(KernelName::kGatedDelta, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    const GatedNormShape shape = gated_norm_shape(x, weight);
    const auto of_eps = static_cast<float>(eps);
    if (how == Implementation::kCpu) {
      return gated_norm_backward_cpu(read_rows<T>(dy), read_rows<T>(x), read_rows<T>(gate), read<T>(weight), of_eps,
                                     write_rows<T>(dx), write_rows<T>(d_gate), write<float>(dweight), shape);
    }
    const NativeKernelsOf<T>& own = native_kernels_of<T>();
    if (needs_dweight) {  // first: dx may be dy
      own.gated_norm_weight_gradient(read_rows<T>(dy), read_rows<T>(x), read_rows<T>(gate), of_eps,
                                     write<float>(dweight), native_workspace(gated_norm_workspace(shape.head_size)),
                                     shape, native_stream());
    }
    own.gated_norm_backward(read_rows<T>(dy), read_rows<T>(x), read_rows<T>(gate), read<T>(weight), of_eps,
                            write_rows<T>(dx), write_rows<T>(d_gate), shape, native_stream());
  });
}

void gated_norm_forward_reference(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                                  at::Tensor& y) {
  const at::Tensor heads = heads_of_rows(x, weight);
  const at::Tensor normed = heads * at::rsqrt(heads.square().mean(-1, /*keepdim=*/true) + eps);
  const at::Tensor scaled = weight * normed.to(x.scalar_type());
  y.copy_((scaled * at::silu(heads_of_rows(gate, weight))).flatten(1));
}

void gated_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate,
                                   const at::Tensor& weight, double eps, at::Tensor& dx, at::Tensor& d_gate,
                                   at::Tensor& dweight) {
  const at::Tensor heads = heads_of_rows(x, weight), z = heads_of_rows(gate, weight), d = heads_of_rows(dy, weight);
  const at::Tensor rstd = at::rsqrt(heads.square().mean(-1, /*keepdim=*/true) + eps), normed = heads * rstd;
  const at::Tensor sigmoid = at::sigmoid(z), silu = z * sigmoid, dw = d * to_math(weight), g = dw * silu;
  if (dweight.defined()) dweight.add_((d * normed * silu).flatten(0, 1).sum(0));
  d_gate.copy_((dw * normed * sigmoid * (1 + z * (1 - sigmoid))).flatten(1));
  dx.copy_((rstd * (g - normed * (g * normed).mean(-1, /*keepdim=*/true))).flatten(1));  // last: dx may be dy
}

}  // namespace lora_train::kernels
