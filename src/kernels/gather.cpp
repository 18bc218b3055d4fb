#include "lora_train/kernels/gather.h"

#include "checks.h"
#include "lora_train/kernels/work_record.h"
#include "own_arguments.h"

namespace lora_train::kernels {
namespace {

/// `picked` has one row for each of `rows`, `whole` any number.
void check_pair(const char* kernel, const at::Tensor& whole, const at::Tensor& rows, const at::Tensor& picked) {
  check_rows(kernel, "rows", rows, {-1});
  check_contiguous(kernel, "rows", rows);
  check_dtype(kernel, "rows", rows, at::kLong);
  check_rows(kernel, "all rows", whole, {-1, -1});
  check_floating(kernel, "all rows", whole);
  check_rows(kernel, "picked rows", picked, {rows.size(0), whole.size(1)});
  check_dtype(kernel, "picked rows", picked, whole.scalar_type());
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
  if (how != Implementation::kCuda) return gather_rows_reference(from, rows, to);  // on a CPU too: ATen is as fast
  with_cpu_type(from, [&]<class T>(CpuType<T>) {
    own_kernels_of<T>().gather_rows(read_rows<T>(from), read<std::int64_t>(rows), write_rows<T>(to), rows.size(0),
                                    from.size(0), from.size(1), own_stream());
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
  with_cpu_type(from, [&]<class T>(CpuType<T>) {
    own_kernels_of<T>().scatter_rows(read_rows<T>(from), read<std::int64_t>(rows), write_rows<T>(to), rows.size(0),
                                     to.size(0), to.size(1), own_stream());
  });
}

void take_next(const at::Tensor& rows, const at::Tensor& targets, at::Tensor& next, at::Tensor& picked_rows,
               at::Tensor& picked_targets) {
  constexpr auto kName = "take_next";
  const auto check = [](const char* name, const at::Tensor& t, at::IntArrayRef sizes, at::ScalarType dtype) {
    check_shape(kName, name, t, sizes);
    check_contiguous(kName, name, t);
    check_dtype(kName, name, t, dtype);
  };
  check("rows", rows, {-1}, at::kLong);
  check("targets", targets, {rows.size(0)}, at::kInt);
  check("next", next, {}, at::kLong);
  check("picked_rows", picked_rows, {-1}, at::kLong);
  check("picked_targets", picked_targets, {picked_rows.size(0)}, at::kInt);
  if (!is_own_place(KernelName::kEmbedding, rows)) return take_next_reference(rows, targets, next, picked_rows, picked_targets);
  own_kernels().take_next(read<std::int64_t>(rows), read<std::int32_t>(targets), write<std::int64_t>(next),
                          write<std::int64_t>(picked_rows), write<std::int32_t>(picked_targets), picked_rows.size(0),
                          own_stream());
}

}  // namespace lora_train::kernels
