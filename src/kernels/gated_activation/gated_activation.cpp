#include "lora_train/kernels/gated_activation/gated_activation.h"

#include "dispatch/arguments.h"
#include "gated_activation_parts.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

/// act(gate) in the dtype of the math.
at::Tensor activated(const at::Tensor& gate, Activation activation) {
  if (activation == Activation::kSigmoid) return to_math(at::sigmoid(gate));
  return activation == Activation::kSilu ? at::silu(to_math(gate)) : at::gelu(to_math(gate), "tanh");
}

}  // namespace

void gated_activation_forward(const at::Tensor& gate, const at::Tensor& up, at::Tensor& y, Activation activation) {
  constexpr auto kName = "gated_activation_forward";
  check_floating(kName, "gate", gate, {-1, -1});
  check_like(kName, gate, {{"up", up}, {"y", y}});
  const WorkScope recorded(kName, WorkClass::kGatedActivation,
                           [&](Work& work) { work.reads("gate", gate).reads("up", up).writes("y", y); });
  const auto reference = [&] { gated_activation_forward_reference(gate, up, y, activation); };
  run_kernel(KernelName::kGatedActivation, gate, reference, [&]<class T>(ElementType<T>, Implementation how) {
    run_native<T>(how, gated_activation_forward_cpu<T>, &NativeKernelsOf<T>::gated_activation_forward,
                  read_rows<T>(gate), read_rows<T>(up), write_rows<T>(y), y.size(0), y.size(1), activation);
  });
}

void gated_activation_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, at::Tensor& d_gate,
                               at::Tensor& d_up, Activation activation) {
  constexpr auto kName = "gated_activation_backward";
  check_floating(kName, "gate", gate, {-1, -1});
  check_like(kName, gate, {{"dy", dy}, {"up", up}, {"d_gate", d_gate}, {"d_up", d_up}});
  const WorkScope recorded(kName, WorkClass::kGatedActivation, [&](Work& work) {
    work.reads("dy", dy).reads("gate", gate).reads("up", up).writes("d_gate", d_gate).writes("d_up", d_up);
  });
  const auto reference = [&] { gated_activation_backward_reference(dy, gate, up, d_gate, d_up, activation); };
  run_kernel(KernelName::kGatedActivation, gate, reference, [&]<class T>(ElementType<T>, Implementation how) {
    run_native<T>(how, gated_activation_backward_cpu<T>, &NativeKernelsOf<T>::gated_activation_backward,
                  read_rows<T>(dy), read_rows<T>(gate), read_rows<T>(up), write_rows<T>(d_gate), write_rows<T>(d_up),
                  dy.size(0), dy.size(1), activation);
  });
}

void gated_activation_forward_reference(const at::Tensor& gate, const at::Tensor& up, at::Tensor& y,
                                        Activation activation) {
  y.copy_(activated(gate, activation) * to_math(up));
}

void gated_activation_backward_reference(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                                         at::Tensor& d_gate, at::Tensor& d_up, Activation activation) {
  const at::Tensor x = to_math(gate), sigmoid = at::sigmoid(x), d = to_math(dy), of_act = d * to_math(up);
  const at::Tensor of_up = activation == Activation::kSilu ? d * x * sigmoid : d * activated(gate, activation);
  d_gate.copy_(activation == Activation::kSigmoid    ? of_act * sigmoid * (1 - sigmoid)
               : activation == Activation::kGeluTanh ? at::gelu_backward(of_act, x, "tanh")
                                                     : of_act * sigmoid * (1 + x * (1 - sigmoid)));
  d_up.copy_(of_up);  // all inputs are read before
}

}  // namespace lora_train::kernels
