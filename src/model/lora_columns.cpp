// N tokens, D input features, C adapter columns.
#include "lora_columns.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/dropout/dropout.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/gemm/skinny_gemm.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::model {
namespace {

const kernels::GemmExtras kThin{.work_class = kernels::WorkClass::kLora};

bool drops(const LoraAdapter& adapter, const DropoutContext& dropout) {
  return dropout.enabled && adapter.dropout > 0.0;
}

/// Memory for x [N, D]. Rows of scratch are narrower than x where x is a tile.
at::Tensor scratch_like(const at::Tensor& x, const LinearPass& pass) {
  return pass.scratch.as_strided(x.sizes(), {std::max(pass.scratch.stride(0), x.size(1)), 1});
}

/// x with this adapter's dropout mask applied, in scratch.
at::Tensor masked(const LoraAdapter& adapter, const at::Tensor& x, const LinearPass& pass) {
  const DropoutContext& dropout = pass.dropout;
  at::Tensor out = scratch_like(x, pass);
  kernels::dropout_forward(x, dropout.token_document, dropout.token_position, dropout.keys[adapter.index],
                           adapter.dropout, out);
  return out;
}

/// Zeroes what other adapters than a token's own have put into its columns of s [N, C].
void keep_own_columns(const Projection& projection, const LinearPass& pass, at::Tensor& s) {
  if (!pass.row_owners.defined() || !projection.column_owners.defined()) return;
  s.masked_fill_(at::ne(projection.column_owners, pass.row_owners), 0);
}

}  // namespace

bool has_masks(const Projection& projection, const DropoutContext& dropout) {
  for (const auto& adapter : projection.adapters) {
    if (drops(adapter, dropout)) return true;
  }
  return false;
}

void fill_adapter_columns(const Projection& projection, at::Tensor& input, const LinearPass& pass) {
  if (projection.num_columns == 0 || !pass.use_adapter) return;
  const at::Tensor x = input.narrow(1, 0, projection.in_features), a = projection.lora_a();
  at::Tensor s = input.narrow(1, projection.in_features, projection.num_columns);
  if (pass.product == Product::kSkinny || !has_masks(projection, pass.dropout)) {
    if (pass.product == Product::kSkinny) {
      kernels::skinny_gemm(x, a, {}, {}, s);
    } else {
      kernels::gemm(x, a.t(), s, kThin);
    }
    return keep_own_columns(projection, pass, s);
  }
  const auto fill = [&](const at::Tensor& from, int64_t column, int64_t count) {
    at::Tensor part = s.narrow(1, column, count);
    kernels::gemm(from, a.narrow(0, column, count).t(), part, kThin);
  };
  for (const auto& adapter : projection.adapters) {
    fill(drops(adapter, pass.dropout) ? masked(adapter, x, pass) : x, adapter.column, adapter.rank);
  }
  const int64_t used = projection.adapters.back().column + projection.adapters.back().rank;
  if (used < projection.num_columns) fill(x, used, projection.num_columns - used);  // unused rows of A are zero
}

std::vector<kernels::LoraPart> parts_of_b(const Projection& projection, double scale) {
  std::vector<kernels::LoraPart> parts;
  for (const auto& adapter : projection.adapters) {
    parts.push_back({adapter.column, adapter.rank, adapter.out_begin, adapter.out_end, scale * adapter.scale,
                     adapter.grads[kLoraB]});
  }
  return parts;
}

void add_gradients_of_a(const Projection& projection, const at::Tensor& x, const at::Tensor& ds, double scale,
                        const LinearPass& pass) {
  std::vector<kernels::LoraPart> unmasked;  // one pass over x for all of them
  for (const auto& adapter : projection.adapters) {
    const kernels::LoraPart part{adapter.column, adapter.rank, 0, 0, scale, adapter.grads[kLoraA]};
    if (drops(adapter, pass.dropout)) {
      kernels::lora_grad_a(ds, masked(adapter, x, pass), {part});
    } else {
      unmasked.push_back(part);
    }
  }
  if (!unmasked.empty()) kernels::lora_grad_a(ds, x, unmasked);
}

void add_adapter_input_gradient(const Projection& projection, const at::Tensor& ds, at::Tensor& dx, double scale,
                                const LinearPass& pass) {
  const kernels::GemmExtras add{.accumulate = true, .alpha = scale, .work_class = kernels::WorkClass::kLora};
  if (!has_masks(projection, pass.dropout)) return kernels::gemm(ds, projection.lora_a(), dx, add);
  for (const auto& adapter : projection.adapters) {
    const at::Tensor ds_part = ds.narrow(1, adapter.column, adapter.rank);
    const at::Tensor a = projection.lora_a().narrow(0, adapter.column, adapter.rank);
    if (!drops(adapter, pass.dropout)) {
      kernels::gemm(ds_part, a, dx, add);
      continue;
    }
    at::Tensor dx_part = scratch_like(dx, pass);
    kernels::gemm(ds_part, a, dx_part, {.alpha = scale, .work_class = kernels::WorkClass::kLora});
    const at::Tensor part = masked(adapter, dx_part, pass);  // in place: masked() writes where it reads
    kernels::run_or_capture([dx, part] { dx.add_(part); });
  }
}

}  // namespace lora_train::model
