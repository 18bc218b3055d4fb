#include "lora_train/kernels/gated_activation/gated_activation.h"

#include "dispatch/arguments.h"
#include "gated_activation_parts.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

void check_pair(const char* kernel, const at::Tensor& gate_up, const char* name, const at::Tensor& y) {
  check_rows(kernel, "gate_up", gate_up, {-1, -1});
  check_floating(kernel, "gate_up", gate_up);
  check_shape(kernel, "gate_up", gate_up, {gate_up.size(0), gate_up.size(1) / 2 * 2});
  check_rows(kernel, name, y, {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
}

}  // namespace

void gated_activation_forward(const at::Tensor& gate_up, at::Tensor& y, Activation activation) {
  constexpr auto kName = "gated_activation_forward";
  check_pair(kName, gate_up, "y", y);
  const WorkScope recorded(kName, WorkClass::kGatedActivation,
                           [&](Work& work) { work.reads("gate_up", gate_up).writes("y", y); });
  if (gate_up.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kGatedActivation, gate_up);
  if (how == Implementation::kReference) return gated_activation_forward_reference(gate_up, y, activation);
  dispatch_dtype(gate_up, [&]<class T>(ElementType<T>) {
    run_native<T>(how, gated_activation_forward_cpu<T>, &NativeKernelsOf<T>::gated_activation_forward,
                  read_rows<T>(gate_up), write_rows<T>(y), y.size(0), y.size(1), activation);
  });
}

void gated_activation_backward(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up,
                               Activation activation) {
  constexpr auto kName = "gated_activation_backward";
  check_pair(kName, gate_up, "dy", dy);
  check_rows(kName, "d_gate_up", d_gate_up, gate_up.sizes(), gate_up.scalar_type());
  const WorkScope recorded(kName, WorkClass::kGatedActivation, [&](Work& work) {
    work.reads("dy", dy).reads("gate_up", gate_up).writes("d_gate_up", d_gate_up);
  });
  if (gate_up.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kGatedActivation, gate_up);
  if (how == Implementation::kReference) return gated_activation_backward_reference(dy, gate_up, d_gate_up, activation);
  dispatch_dtype(gate_up, [&]<class T>(ElementType<T>) {
    run_native<T>(how, gated_activation_backward_cpu<T>, &NativeKernelsOf<T>::gated_activation_backward,
                  read_rows<T>(dy), read_rows<T>(gate_up), write_rows<T>(d_gate_up), dy.size(0), dy.size(1),
                  activation);
  });
}

void gated_activation_forward_reference(const at::Tensor& gate_up, at::Tensor& y, Activation activation) {
  const auto parts = to_math(gate_up).chunk(2, -1);
  y.copy_((activation == Activation::kSilu ? at::silu(parts[0]) : at::gelu(parts[0], "tanh")) * parts[1]);
}

void gated_activation_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up,
                                         Activation activation) {
  const auto parts = to_math(gate_up).chunk(2, -1);
  const auto& gate = parts[0];
  const auto& up = parts[1];
  const auto dyf = to_math(dy);
  if (activation == Activation::kGeluTanh) {
    d_gate_up.copy_(at::cat({at::gelu_backward(dyf * up, gate, "tanh"), dyf * at::gelu(gate, "tanh")}, -1));
    return;
  }
  const auto sigmoid = at::sigmoid(gate);
  const auto d_gate = dyf * up * sigmoid * (1 + gate * (1 - sigmoid));
  const auto d_up = dyf * gate * sigmoid;
  d_gate_up.copy_(at::cat({d_gate, d_up}, -1));
}

}  // namespace lora_train::kernels
