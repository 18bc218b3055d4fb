#include "lora_train/kernels/output_gate/output_gate.h"

#include "dispatch/arguments.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "output_gate_parts.h"

namespace lora_train::kernels {
namespace {

void check_output_gate(const char* kernel, const at::Tensor& x, const at::Tensor& gate) {
  check_rows(kernel, "x", x, {-1, -1});
  check_floating(kernel, "x", x);
  check_rows(kernel, "gate", gate, x.sizes(), x.scalar_type());
}

}  // namespace

void output_gate_forward(const at::Tensor& x, const at::Tensor& gate, at::Tensor& y) {
  constexpr auto kName = "output_gate_forward";
  check_output_gate(kName, x, gate);
  check_rows(kName, "y", y, x.sizes(), x.scalar_type());
  const WorkScope recorded(kName, WorkClass::kGatedActivation,
                           [&](Work& work) { work.reads("x", x).reads("gate", gate).writes("y", y); });
  if (x.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kGatedActivation, x);
  if (how == Implementation::kReference) return output_gate_forward_reference(x, gate, y);
  dispatch_dtype(x, [&]<class T>(ElementType<T>) {
    run_native<T>(how, output_gate_forward_cpu<T>, &NativeKernelsOf<T>::output_gate_forward, read_rows<T>(x),
                  read_rows<T>(gate), write_rows<T>(y), x.size(0), x.size(1));
  });
}

void output_gate_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate, at::Tensor& dx,
                          at::Tensor& d_gate) {
  constexpr auto kName = "output_gate_backward";
  check_output_gate(kName, x, gate);
  check_rows(kName, "dy", dy, x.sizes(), x.scalar_type());
  check_rows(kName, "dx", dx, x.sizes(), x.scalar_type());
  check_rows(kName, "d_gate", d_gate, x.sizes(), x.scalar_type());
  const WorkScope recorded(kName, WorkClass::kGatedActivation, [&](Work& work) {
    work.reads("dy", dy).reads("x", x).reads("gate", gate).writes("dx", dx).writes("d_gate", d_gate);
  });
  if (x.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kGatedActivation, x);
  if (how == Implementation::kReference) return output_gate_backward_reference(dy, x, gate, dx, d_gate);
  dispatch_dtype(x, [&]<class T>(ElementType<T>) {
    run_native<T>(how, output_gate_backward_cpu<T>, &NativeKernelsOf<T>::output_gate_backward, read_rows<T>(dy),
                  read_rows<T>(x), read_rows<T>(gate), write_rows<T>(dx), write_rows<T>(d_gate), x.size(0), x.size(1));
  });
}

void output_gate_forward_reference(const at::Tensor& x, const at::Tensor& gate, at::Tensor& y) {
  y.copy_(x * at::sigmoid(gate));
}

void output_gate_backward_reference(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate, at::Tensor& dx,
                                    at::Tensor& d_gate) {
  const at::Tensor d = to_math(dy), exact = at::sigmoid(to_math(gate));
  const at::Tensor of_gate = d * to_math(x) * exact * (1 - exact);
  dx.copy_(d * at::sigmoid(gate));  // after the last use of dy, which it may be
  d_gate.copy_(of_gate);
}

}  // namespace lora_train::kernels
