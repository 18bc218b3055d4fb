#include "lora_train/kernels/gather/gather.h"

#include <ATen/ATen.h>

#include "dispatch/arguments.h"
#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::kernels {
namespace {

/// `picked` has one row for each of `rows`, `whole` any number.
void check_pair(const char* kernel, const at::Tensor& whole, const at::Tensor& rows, const at::Tensor& picked) {
  check_vector(kernel, "rows", rows, -1, at::kLong);
  check_rows(kernel, "all rows", whole, {-1, -1});
  check_floating(kernel, "all rows", whole);
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
