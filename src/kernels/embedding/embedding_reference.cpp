#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/embedding/embedding.h"

namespace lora_train::kernels {
namespace {

// Slot of every token's row among the trainable rows, -1 for a frozen one.
at::Tensor trainable_slots(const at::Tensor& ids, const TrainableRows& rows, int64_t vocabulary) {
  auto slot_of_id = at::full({vocabulary}, -1, rows.indices.options());
  slot_of_id.index_copy_(0, rows.indices, at::arange(rows.indices.size(0), rows.indices.options()));
  return slot_of_id.index_select(0, ids);
}

}  // namespace

void embedding_forward_reference(const at::Tensor& ids, const at::Tensor& weight, const TrainableRows& rows,
                                 at::Tensor& out, double scale) {
  out.copy_(to_math(weight.index_select(0, ids)) * scale);
  if (!rows.indices.defined()) return;
  const auto slots = trainable_slots(ids, rows, weight.size(0));
  const auto tokens = (slots >= 0).nonzero().squeeze(1);
  const auto trained = rows.values.index_select(0, slots.index_select(0, tokens)).to(out.scalar_type());
  out.index_copy_(0, tokens, (to_math(trained) * scale).to(out.scalar_type()));
}

void embedding_backward_reference(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight,
                                  TrainableRows& rows, double scale) {
  if (rows.indices.defined()) {
    const int64_t vocabulary = std::max(rows.indices.numel() > 0 ? rows.indices.max().item<int64_t>() + 1 : 0,
                                        ids.numel() > 0 ? ids.max().item<int64_t>() + 1 : 0);
    const auto slots = trainable_slots(ids, rows, vocabulary);
    const auto tokens = (slots >= 0).nonzero().squeeze(1);
    rows.grads.index_add_(0, slots.index_select(0, tokens), dout.index_select(0, tokens).to(at::kFloat) * scale);
  }
  if (dweight != nullptr && dweight->defined()) dweight->index_add_(0, ids, to_math(dout) * scale);
}

}  // namespace lora_train::kernels
