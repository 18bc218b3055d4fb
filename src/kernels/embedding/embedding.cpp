#include "lora_train/kernels/embedding/embedding.h"

#include <algorithm>

#include "dispatch/arguments.h"
#include "embedding_parts.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

void check_trainable(const char* kernel, const TrainableRows& rows, int64_t hidden) {
  check_vector(kernel, "rows.indices", rows.indices, -1, at::kLong);
  check_rows(kernel, "rows.values", rows.values, {rows.indices.size(0), hidden}, at::kFloat);
}

void gather_on_cpu(const at::Tensor& ids, const at::Tensor& weight, at::Tensor& out, double scale) {
  if (scale != 1) {
    return dispatch_dtype(weight, [&]<class T>(ElementType<T>) {
      gather_scaled_rows_cpu(read_rows<T>(weight), read<std::int32_t>(ids), static_cast<float>(scale),
                             write_rows<T>(out), ids.size(0), weight.size(1));
    });
  }
  const int64_t size = weight.element_size();
  gather_rows_cpu({read<char>(weight), weight.stride(0) * size}, read<std::int32_t>(ids),
                  {write<char>(out), out.stride(0) * size}, ids.size(0), weight.size(1) * size);
}

void backward_on_cuda(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight, TrainableRows& rows,
                      const at::Tensor& order, double scale) {
  check_vector("embedding_backward", "order", order, ids.size(0), at::kInt);
  dispatch_dtype(dout, [&]<class T>(ElementType<T>) {
    const auto* const id = read<std::int32_t>(ids);
    const auto* const sorted = read<std::int32_t>(order);
    if (rows.indices.defined()) {
      native_kernels_of<T>().trainable_rows_backward(
          id, sorted, read_rows<T>(dout), static_cast<float>(scale), read<std::int64_t>(rows.indices),
          rows.indices.size(0), write_rows<float>(rows.grads), dout.size(0), dout.size(1), native_stream());
    }
    if (dweight == nullptr) return;
    native_kernels_of<T>().embedding_backward(id, sorted, read_rows<T>(dout), static_cast<float>(scale),
                                              write_rows<float>(*dweight), dout.size(0), dout.size(1), native_stream());
  });
}

// Slot of every token's row among the trainable rows, -1 for a frozen one.
at::Tensor trainable_slots(const at::Tensor& ids, const TrainableRows& rows, int64_t vocabulary) {
  auto slot_of_id = at::full({vocabulary}, -1, rows.indices.options());
  slot_of_id.index_copy_(0, rows.indices, at::arange(rows.indices.size(0), rows.indices.options()));
  return slot_of_id.index_select(0, ids);
}

}  // namespace

std::vector<std::int32_t> order_by_id(std::span<const std::int32_t> ids) {
  std::vector<std::uint64_t> keys(ids.size());  // id, then token: distinct, so any sort is stable
  for (std::size_t n = 0; n < ids.size(); ++n) keys[n] = std::uint64_t{static_cast<std::uint32_t>(ids[n])} << 32 | n;
  std::sort(keys.begin(), keys.end());
  std::vector<std::int32_t> order(ids.size());
  for (std::size_t n = 0; n < ids.size(); ++n) order[n] = static_cast<std::int32_t>(keys[n] & 0xFFFFFFFFu);
  return order;
}

void embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const TrainableRows& rows, at::Tensor& out,
                       double scale) {
  constexpr auto kName = "embedding_forward";
  check_vector(kName, "ids", ids, -1, at::kInt);
  check_floating(kName, "weight", weight, {-1, -1});
  check_rows(kName, "out", out, {ids.size(0), weight.size(1)});
  const bool widens = weight.is_cpu() && is_widened(weight, out);
  if (!widens) check_dtype(kName, "out", out, weight.scalar_type());
  const bool has_rows = rows.indices.defined();
  if (has_rows) check_trainable(kName, rows, weight.size(1));
  const WorkScope recorded(kName, WorkClass::kEmbedding, [&](Work& work) {
    work.reads("ids", ids).reads_bytes("rows of weight", bytes_of(out)).writes("out", out);
  });
  if (weight.is_meta()) return;
  const Implementation how = widens ? Implementation::kReference : implementation_for(KernelName::kEmbedding, weight);
  if (how == Implementation::kCpu && !has_rows) return gather_on_cpu(ids, weight, out, scale);
  if (how != Implementation::kCuda) return embedding_forward_reference(ids, weight, rows, out, scale);
  dispatch_dtype(weight, [&]<class T>(ElementType<T>) {
    native_kernels_of<T>().embedding_forward(read<std::int32_t>(ids), read_rows<T>(weight),
                                             read<std::int64_t>(rows.indices), has_rows ? rows.indices.size(0) : 0,
                                             read_rows<float>(rows.values), static_cast<float>(scale),
                                             write_rows<T>(out), ids.size(0), weight.size(1), native_stream());
  });
}

void embedding_backward(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight, TrainableRows& rows,
                        const at::Tensor& order, double scale) {
  constexpr auto kName = "embedding_backward";
  check_vector(kName, "ids", ids, -1, at::kInt);
  check_floating(kName, "dout", dout, {ids.size(0), -1});
  if (rows.indices.defined()) {
    check_trainable(kName, rows, dout.size(1));
    check_rows(kName, "rows.grads", rows.grads, rows.values.sizes(), at::kFloat);
  }
  at::Tensor* const target = dweight != nullptr && dweight->defined() ? dweight : nullptr;
  if (target != nullptr) check_rows(kName, "dweight", *dweight, {-1, dout.size(1)}, math_dtype(dout));
  const WorkScope recorded(kName, WorkClass::kEmbedding, [&](Work& work) {
    const std::int64_t passes = (target != nullptr ? 1 : 0) + (rows.indices.defined() ? 1 : 0);
    work.reads("ids", ids, passes).reads("order", order, passes).reads("dout", dout, passes).launches(passes);
    if (target != nullptr) work.updates("dweight", dout);  // at most one row per token
    if (rows.indices.defined()) work.updates("rows.grads", rows.grads);
  });
  if (dout.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kEmbedding, dout);
  if (how == Implementation::kCuda) return backward_on_cuda(ids, dout, target, rows, order, scale);
  if (how == Implementation::kReference) return embedding_backward_reference(ids, dout, target, rows, scale);
  embedding_backward_reference(ids, dout, nullptr, rows, scale);
  if (target == nullptr) return;
  dispatch_dtype(dout, [&]<class T>(ElementType<T>) {
    scatter_add_rows_cpu(read_rows<T>(dout), read<std::int32_t>(ids), static_cast<float>(scale),
                         write_rows<float>(*dweight), dout.size(0), dout.size(1));
  });
}

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

namespace {

/// `picked` has one row for each of `rows`, `whole` any number.
void check_pair(const char* kernel, const at::Tensor& whole, const at::Tensor& rows, const at::Tensor& picked) {
  check_vector(kernel, "rows", rows, -1, at::kLong);
  check_floating(kernel, "all rows", whole, {-1, -1});
  check_rows(kernel, "picked rows", picked, {rows.size(0), whole.size(1)}, whole.scalar_type());
}

}  // namespace

void gather_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  constexpr auto kName = "gather_rows";
  check_pair(kName, from, rows, to);
  const WorkScope recorded(kName, WorkClass::kLoss, [&](Work& work) {
    work.reads("rows", rows).reads_bytes("picked of from", bytes_of(to)).writes("to", to);
  });
  if (from.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kEmbedding, from);
  if (how != Implementation::kCuda) return gather_rows_reference(from, rows, to);  // also on a CPU: ATen is as fast
  dispatch_dtype(from, [&]<class T>(ElementType<T>) {
    native_kernels_of<T>().gather_rows(read_rows<T>(from), read<std::int64_t>(rows), write_rows<T>(to), rows.size(0),
                                       from.size(0), from.size(1), native_stream());
  });
}

void scatter_rows(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  constexpr auto kName = "scatter_rows";
  check_pair(kName, to, rows, from);
  const WorkScope recorded(kName, WorkClass::kLoss,
                           [&](Work& work) { work.reads("rows", rows).reads("from", from).writes("to", to); });
  if (to.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kEmbedding, from);
  if (how != Implementation::kCuda) return scatter_rows_reference(from, rows, to);
  dispatch_dtype(from, [&]<class T>(ElementType<T>) {
    native_kernels_of<T>().scatter_rows(read_rows<T>(from), read<std::int64_t>(rows), write_rows<T>(to), rows.size(0),
                                        to.size(0), to.size(1), native_stream());
  });
}

void take_next(const RowLists& lists, at::Tensor& next, RowLists& picked) {
  constexpr auto kName = "take_next";
  check_vector(kName, "rows", lists.rows, -1, at::kLong);
  check_vector(kName, "targets", lists.targets, lists.rows.size(0), at::kInt);
  check_vector(kName, "picked rows", picked.rows, -1, at::kLong);
  const std::int64_t count = picked.rows.size(0);
  check_vector(kName, "picked targets", picked.targets, count, at::kInt);
  const bool has_weights = lists.weights.defined();
  if (has_weights) {
    check_vector(kName, "weights", lists.weights, lists.rows.size(0), at::kFloat);
    check_vector(kName, "picked weights", picked.weights, count, at::kFloat);
  }
  check_rows(kName, "next", next, {}, at::kLong);
  if (!has_native_kernel(KernelName::kEmbedding, lists.rows)) return take_next_reference(lists, next, picked);
  native_kernels().take_next(read<std::int64_t>(lists.rows), read<std::int32_t>(lists.targets),
                             read<float>(lists.weights), write<std::int64_t>(next), write<std::int64_t>(picked.rows),
                             write<std::int32_t>(picked.targets), has_weights ? write<float>(picked.weights) : nullptr,
                             count, native_stream());
}

void gather_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  const int64_t N = from.size(0);
  if (N == 0) {
    to.zero_();
    return;
  }
  at::index_select_out(to, from, 0, rows.clamp_max(N - 1));
  to.masked_fill_((rows >= N).unsqueeze(1), 0);
}

void scatter_rows_reference(const at::Tensor& from, const at::Tensor& rows, at::Tensor& to) {
  const int64_t N = to.size(0);
  at::Tensor wider = at::cat({to, at::zeros({1, to.size(1)}, to.options())});  // an extra row for entries to discard
  to.copy_(wider.index_copy_(0, rows.clamp_max(N), from).narrow(0, 0, N));
}

void take_next_reference(const RowLists& lists, at::Tensor& next, RowLists& picked) {
  const at::Tensor places = next + at::arange(picked.rows.size(0), lists.rows.options());
  at::index_select_out(picked.rows, lists.rows, 0, places);
  at::index_select_out(picked.targets, lists.targets, 0, places);
  if (lists.weights.defined()) at::index_select_out(picked.weights, lists.weights, 0, places);
  next.add_(picked.rows.size(0));
}

}  // namespace lora_train::kernels
