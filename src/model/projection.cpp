#include "lora_train/model/projection.h"

#include <ATen/ATen.h>

#include "lora_train/kernels/cast.h"
#include "lora_train/kernels/dropout.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/lora.h"

// N tokens, D input features, O outputs, C adapter columns.
namespace lora_train::model {
namespace {

at::Tensor columns_of(const Projection& projection, const LoraAdapter& adapter, const at::Tensor& wide) {
  return wide.narrow(1, projection.in_features + adapter.column, adapter.rank);
}

bool drops(const LoraAdapter& adapter, const DropoutContext& dropout) {
  return dropout.enabled && adapter.dropout > 0.0;
}

/// x with this adapter's mask, in scratch.
at::Tensor masked(const LoraAdapter& adapter, const at::Tensor& x, const DropoutContext& dropout,
                  const at::Tensor& scratch) {
  at::Tensor out = scratch.narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1));
  const PhiloxKey key = philox_key(dropout.seed, RandomPurpose::kLoraDropout, adapter.path,
                                   static_cast<std::uint64_t>(dropout.step));
  kernels::dropout_forward(x, dropout.token_document, dropout.token_position, key, adapter.dropout, out);
  return out;
}

bool any_drops(const Projection& projection, const DropoutContext& dropout) {
  for (const auto& adapter : projection.adapters) {
    if (drops(adapter, dropout)) return true;
  }
  return false;
}

/// dA and dB of every adapter, from dS and S.
void adapter_gradients(Projection& projection, const at::Tensor& input, const at::Tensor& dy, const at::Tensor& d_input,
                       const DropoutContext& dropout, const at::Tensor& scratch) {
  const at::Tensor x = input.narrow(1, 0, projection.in_features);
  for (auto& adapter : projection.adapters) {
    const at::Tensor s = columns_of(projection, adapter, input);
    const at::Tensor ds = columns_of(projection, adapter, d_input);
    kernels::lora_grad_b(dy.narrow(1, adapter.out_begin, adapter.out_end - adapter.out_begin), s, adapter.scale,
                         adapter.grad_b);
    kernels::lora_grad_a(ds, drops(adapter, dropout) ? masked(adapter, x, dropout, scratch) : x, adapter.grad_a);
  }
}

/// dx += dS A, through the masks where there are some.
void add_adapter_input_gradient(const Projection& projection, at::Tensor& d_input, const DropoutContext& dropout,
                                const at::Tensor& scratch) {
  at::Tensor dx = d_input.narrow(1, 0, projection.in_features);
  if (!any_drops(projection, dropout)) {
    kernels::gemm(d_input.narrow(1, projection.in_features, projection.num_columns), projection.lora_a, dx,
                  {.accumulate = true, .work_class = kernels::WorkClass::kLora});
    return;
  }
  for (const auto& adapter : projection.adapters) {
    const at::Tensor ds = columns_of(projection, adapter, d_input);
    const at::Tensor a = projection.lora_a.narrow(0, adapter.column, adapter.rank);
    if (!drops(adapter, dropout)) {
      kernels::gemm(ds, a, dx, {.accumulate = true, .work_class = kernels::WorkClass::kLora});
      continue;
    }
    at::Tensor dx_part = scratch.narrow(0, 0, dx.size(0)).narrow(1, 0, dx.size(1));
    kernels::gemm(ds, a, dx_part, {.work_class = kernels::WorkClass::kLora});
    dx.add_(masked(adapter, dx_part, dropout, scratch));  // in place: masked() writes where it reads
  }
}

void weight_gradients(Projection& projection, const at::Tensor& input, const at::Tensor& dy) {
  if (projection.grad_weight.defined()) {
    kernels::gemm(dy.t(), input.narrow(1, 0, projection.in_features), projection.grad_weight, {.accumulate = true});
  }
  if (projection.grad_bias.defined()) projection.grad_bias.add_(at::sum(dy, {0}, false, at::kFloat));
}

}  // namespace

void write_adapter_columns(Projection& projection) {
  for (const auto& adapter : projection.adapters) {
    at::Tensor target = columns_of(projection, adapter, projection.weight)
                            .narrow(0, adapter.out_begin, adapter.out_end - adapter.out_begin);
    kernels::scaled_copy(adapter.b, adapter.scale, target);
    at::Tensor a = projection.lora_a.narrow(0, adapter.column, adapter.rank);
    kernels::scaled_copy(adapter.a, 1.0, a);
  }
}

void fill_adapter_columns(const Projection& projection, at::Tensor& input, const DropoutContext& dropout,
                          const at::Tensor& scratch) {
  if (projection.num_columns == 0) return;
  const at::Tensor x = input.narrow(1, 0, projection.in_features);
  if (!any_drops(projection, dropout)) {
    at::Tensor s = input.narrow(1, projection.in_features, projection.num_columns);
    kernels::gemm(x, projection.lora_a.t(), s, {.work_class = kernels::WorkClass::kLora});
    return;
  }
  for (const auto& adapter : projection.adapters) {
    at::Tensor s = columns_of(projection, adapter, input);
    const at::Tensor a = projection.lora_a.narrow(0, adapter.column, adapter.rank);
    kernels::gemm(drops(adapter, dropout) ? masked(adapter, x, dropout, scratch) : x, a.t(), s,
                  {.work_class = kernels::WorkClass::kLora});
  }
}

void projection_forward(const Projection& projection, const at::Tensor& input, const at::Tensor& residual, at::Tensor& y) {
  kernels::gemm(input, projection.weight.t(), y, {.bias = projection.bias, .residual = residual});
}

void projection_backward(Projection& projection, const at::Tensor& input, const at::Tensor& dy, at::Tensor& d_input,
                         bool need_input_grad, const DropoutContext& dropout, const at::Tensor& scratch) {
  weight_gradients(projection, input, dy);
  if (need_input_grad) {
    kernels::gemm(dy, projection.weight, d_input);
  } else if (projection.num_columns > 0) {
    at::Tensor ds = d_input.narrow(1, projection.in_features, projection.num_columns);
    kernels::gemm(dy, projection.weight.narrow(1, projection.in_features, projection.num_columns), ds,
                  {.work_class = kernels::WorkClass::kLora});
  }
  if (projection.num_columns == 0) return;
  adapter_gradients(projection, input, dy, d_input, dropout, scratch);
  if (need_input_grad) add_adapter_input_gradient(projection, d_input, dropout, scratch);
}

}  // namespace lora_train::model
