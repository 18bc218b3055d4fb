#include "lora_train/model/projection.h"

#include <ATen/ATen.h>

#include "lora_train/kernels/cast.h"
#include "lora_train/kernels/dropout.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/graph.h"
#include "lora_train/kernels/lora.h"

// N tokens, D input features, O outputs, C adapter columns.
namespace lora_train::model {
namespace {

const kernels::GemmExtras kThin{.work_class = kernels::WorkClass::kLora};
const kernels::GemmExtras kAddThin{.accumulate = true, .work_class = kernels::WorkClass::kLora};

bool drops(const LoraAdapter& adapter, const DropoutContext& dropout) {
  return dropout.enabled && adapter.dropout > 0.0;
}

/// x with this adapter's mask, in scratch.
at::Tensor masked(const LoraAdapter& adapter, const at::Tensor& x, const DropoutContext& dropout,
                  const at::Tensor& scratch) {
  at::Tensor out = scratch.narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1));
  kernels::dropout_forward(x, dropout.token_document, dropout.token_position, dropout.keys[adapter.index],
                           adapter.dropout, out);
  return out;
}

bool any_drops(const Projection& projection, const DropoutContext& dropout) {
  for (const auto& adapter : projection.adapters) {
    if (drops(adapter, dropout)) return true;
  }
  return false;
}

/// dA of every adapter. Those whose mask is the same have theirs in one pass over x.
void gradients_of_a(const Projection& projection, const at::Tensor& x, const at::Tensor& ds,
                    const DropoutContext& dropout, const at::Tensor& scratch) {
  std::vector<kernels::LoraPart> unmasked;
  for (const auto& adapter : projection.adapters) {
    const kernels::LoraPart part{adapter.column, adapter.rank, 0, 0, 1, adapter.grad_a};
    if (drops(adapter, dropout)) {
      kernels::lora_grad_a(ds, masked(adapter, x, dropout, scratch), {part});
    } else {
      unmasked.push_back(part);
    }
  }
  if (!unmasked.empty()) kernels::lora_grad_a(ds, x, unmasked);
}

std::vector<kernels::LoraPart> parts_of_b(const Projection& projection) {
  std::vector<kernels::LoraPart> parts;
  for (const auto& adapter : projection.adapters) {
    parts.push_back({adapter.column, adapter.rank, adapter.out_begin, adapter.out_end, adapter.scale, adapter.grad_b});
  }
  return parts;
}

/// dx += dS A, through the masks where there are some.
void add_adapter_input_gradient(const Projection& projection, const at::Tensor& ds, at::Tensor& dx,
                                const DropoutContext& dropout, const at::Tensor& scratch) {
  if (!any_drops(projection, dropout)) return kernels::gemm(ds, projection.lora_a(), dx, kAddThin);
  for (const auto& adapter : projection.adapters) {
    const at::Tensor ds_part = ds.narrow(1, adapter.column, adapter.rank);
    const at::Tensor a = projection.lora_a().narrow(0, adapter.column, adapter.rank);
    if (!drops(adapter, dropout)) {
      kernels::gemm(ds_part, a, dx, kAddThin);
      continue;
    }
    at::Tensor dx_part = scratch.narrow(0, 0, dx.size(0)).narrow(1, 0, dx.size(1));
    kernels::gemm(ds_part, a, dx_part, kThin);
    const at::Tensor part = masked(adapter, dx_part, dropout, scratch);  // in place: masked() writes where it reads
    kernels::do_or_record([dx, part] { dx.add_(part); });
  }
}

void weight_gradients(Projection& projection, const at::Tensor& input, const at::Tensor& dy) {
  if (projection.grad_weight.defined()) {
    kernels::gemm(dy.t(), input.narrow(1, 0, projection.in_features), projection.grad_weight, {.accumulate = true});
  }
  if (!projection.grad_bias.defined()) return;
  kernels::do_or_record([grad = projection.grad_bias, dy] { grad.add_(at::sum(dy, {0}, false, at::kFloat)); });
}

}  // namespace

void add_adapter(Projection& projection, LoraAdapter adapter) {
  const auto& before = projection.adapters;
  adapter.column = before.empty() ? 0 : before.back().column + before.back().rank;
  projection.num_columns = (adapter.column + adapter.rank + kColumnStep - 1) / kColumnStep * kColumnStep;
  projection.adapters.push_back(std::move(adapter));
}

void write_adapter_columns(Projection& projection) {
  for (const auto& adapter : projection.adapters) {
    at::Tensor b = projection.scaled_b()
                       .narrow(0, adapter.out_begin, adapter.out_end - adapter.out_begin)
                       .narrow(1, adapter.column, adapter.rank);
    kernels::scaled_copy(adapter.b, adapter.scale, b);
    at::Tensor a = projection.lora_a().narrow(0, adapter.column, adapter.rank);
    kernels::scaled_copy(adapter.a, 1.0, a);
  }
}

void fill_adapter_columns(const Projection& projection, at::Tensor& input, const DropoutContext& dropout,
                          const at::Tensor& scratch) {
  if (projection.num_columns == 0) return;
  const at::Tensor x = input.narrow(1, 0, projection.in_features), a = projection.lora_a();
  at::Tensor s = input.narrow(1, projection.in_features, projection.num_columns);
  if (!any_drops(projection, dropout)) return kernels::gemm(x, a.t(), s, kThin);
  const auto fill = [&](const at::Tensor& from, int64_t column, int64_t count) {
    at::Tensor part = s.narrow(1, column, count);
    kernels::gemm(from, a.narrow(0, column, count).t(), part, kThin);
  };
  for (const auto& adapter : projection.adapters) {
    fill(drops(adapter, dropout) ? masked(adapter, x, dropout, scratch) : x, adapter.column, adapter.rank);
  }
  const int64_t used = projection.adapters.back().column + projection.adapters.back().rank;
  if (used < projection.num_columns) fill(x, used, projection.num_columns - used);  // rows of zeros: zeros
}

void projection_forward(const Projection& projection, const at::Tensor& input, const at::Tensor& residual, at::Tensor& y) {
  kernels::gemm(input, projection.weight_and_columns().t(), y, {.bias = projection.bias, .residual = residual});
}

void projection_backward(Projection& projection, const at::Tensor& input, at::Tensor& d_output, at::Tensor& d_input,
                         bool need_input_grad, const DropoutContext& dropout, const at::Tensor& scratch) {
  const int64_t D = projection.in_features, O = projection.out_features, C = projection.num_columns;
  const at::Tensor dy = d_output.narrow(1, 0, O);
  at::Tensor dx = d_input.narrow(1, 0, D);
  weight_gradients(projection, input, dy);
  if (C == 0) {
    if (need_input_grad) kernels::gemm(dy, projection.weight, dx);
    return;
  }
  const bool is_beside_dy = projection.has_columns(GradientColumns::kBesideOutput);
  const bool is_masked = any_drops(projection, dropout);
  at::Tensor ds = is_beside_dy ? d_output.narrow(1, O, C) : d_input.narrow(1, D, C);
  const at::Tensor x = input.narrow(1, 0, D), s = input.narrow(1, D, C);
  if (is_beside_dy || !need_input_grad) {
    kernels::lora_grad_s_and_b(dy, projection.scaled_b(), s, ds, parts_of_b(projection));
  } else {
    kernels::gemm(dy, projection.weight_and_columns(), d_input);  // [dx | dS]
    kernels::lora_grad_b(dy, s, parts_of_b(projection));
  }
  gradients_of_a(projection, x, ds, dropout, scratch);
  if (!need_input_grad) return;
  if (is_beside_dy && !is_masked) return kernels::gemm(d_output, projection.weight_and_rows(), dx);
  if (is_beside_dy) kernels::gemm(dy, projection.base_weight(), dx);
  add_adapter_input_gradient(projection, ds, dx, dropout, scratch);
}

}  // namespace lora_train::model
