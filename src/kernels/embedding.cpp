#include "lora_train/kernels/embedding.h"

#include <ATen/ATen.h>

#include "checks.h"
#include "cpu_arguments.h"
#include "embedding_cpu.h"

namespace lora_train::kernels {
namespace {

void check_trainable(const char* kernel, const TrainableRows& rows, int64_t hidden) {
  check_shape(kernel, "rows.indices", rows.indices, {-1});
  check_dtype(kernel, "rows.indices", rows.indices, at::kLong);
  check_rows(kernel, "rows.values", rows.values, {rows.indices.size(0), hidden});
  check_dtype(kernel, "rows.values", rows.values, at::kFloat);
}

// Slot of every token's row among the trainable rows, -1 for a frozen one.
at::Tensor trainable_slots(const at::Tensor& ids, const TrainableRows& rows, int64_t vocabulary) {
  auto slot_of_id = at::full({vocabulary}, -1, rows.indices.options());
  slot_of_id.index_copy_(0, rows.indices, at::arange(rows.indices.size(0), rows.indices.options()));
  return slot_of_id.index_select(0, ids);
}

}  // namespace

void embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const TrainableRows& rows, at::Tensor& out) {
  constexpr auto kName = "embedding_forward";
  check_rows(kName, "ids", ids, {-1});
  check_dtype(kName, "ids", ids, at::kInt);
  check_rows(kName, "weight", weight, {-1, -1});
  check_floating(kName, "weight", weight);
  check_rows(kName, "out", out, {ids.size(0), weight.size(1)});
  check_dtype(kName, "out", out, weight.scalar_type());
  if (weight.is_cpu()) {
    const int64_t size = weight.element_size();
    gather_rows_cpu({read<char>(weight), weight.stride(0) * size}, read<std::int32_t>(ids),
                    {write<char>(out), out.stride(0) * size}, ids.size(0), weight.size(1) * size);
  } else {
    out.copy_(weight.index_select(0, ids));
  }
  if (rows.indices.defined()) {
    check_trainable(kName, rows, weight.size(1));
    const auto slots = trainable_slots(ids, rows, weight.size(0));
    const auto tokens = (slots >= 0).nonzero().squeeze(1);
    out.index_copy_(0, tokens, rows.values.index_select(0, slots.index_select(0, tokens)).to(out.scalar_type()));
  }
}

void embedding_backward(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight, TrainableRows& rows) {
  constexpr auto kName = "embedding_backward";
  check_rows(kName, "ids", ids, {-1});
  check_dtype(kName, "ids", ids, at::kInt);
  check_rows(kName, "dout", dout, {ids.size(0), -1});
  check_floating(kName, "dout", dout);
  if (rows.indices.defined()) {
    check_trainable(kName, rows, dout.size(1));
    check_rows(kName, "rows.grads", rows.grads, rows.values.sizes());
    const int64_t vocabulary = std::max(rows.indices.numel() > 0 ? rows.indices.max().item<int64_t>() + 1 : 0,
                                        ids.numel() > 0 ? ids.max().item<int64_t>() + 1 : 0);
    const auto slots = trainable_slots(ids, rows, vocabulary);
    const auto tokens = (slots >= 0).nonzero().squeeze(1);
    rows.grads.index_add_(0, slots.index_select(0, tokens), dout.index_select(0, tokens).to(at::kFloat));
  }
  if (dweight != nullptr && dweight->defined()) {
    check_rows(kName, "dweight", *dweight, {-1, dout.size(1)});
    check_dtype(kName, "dweight", *dweight, math_dtype(dout));
    if (!has_cpu_kernel(dout)) {
      dweight->index_add_(0, ids, to_math(dout));
      return;
    }
    with_cpu_type(dout, [&]<class T>(CpuType<T>) {
      scatter_add_rows_cpu(read_rows<T>(dout), read<std::int32_t>(ids), write_rows<float>(*dweight), dout.size(0),
                           dout.size(1));
    });
  }
}

}  // namespace lora_train::kernels
