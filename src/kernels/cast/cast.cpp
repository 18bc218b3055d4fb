#include "lora_train/kernels/cast/cast.h"

#include <algorithm>

#include "dispatch/arguments.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/segment_table.h"

namespace lora_train::kernels {

void ScaledCopies::add(const at::Tensor& from, double scale, const at::Tensor& to) {
  constexpr auto kName = "scaled_copy";
  if (from.dim() != 1) check_rows(kName, "from", from, {-1, -1});
  check_rows(kName, "to", to, from.sizes());
  for (const auto& [name, t] : {std::pair{"from", from}, {"to", to}}) {
    if (t.dim() == 1) check_contiguous(kName, name, t);
    check_floating(kName, name, t);
  }
  copies_.push_back({from, scale, to});
  table_ = {};
}

void ScaledCopies::make_table() {
  SegmentTableBuilder<CopySegment> table;
  dispatch_dtype(copies_.front().to, [&]<class To>(ElementType<To>) {
    for (Copy& copy : copies_) {
      const bool is_matrix = copy.to.dim() == 2;
      const int64_t num_rows = is_matrix ? copy.to.size(0) : 1, width = copy.to.size(-1);
      table.add(copy_segment<To>(
          {read<float>(copy.from), is_matrix ? copy.from.stride(0) : width}, static_cast<float>(copy.scale),
          {write<To>(copy.to), is_matrix ? copy.to.stride(0) : width}, num_rows, width, table.next_block()));
    }
  });
  table_ = table.upload(copies_.front().to.device());
}

void ScaledCopies::run() {
  if (copies_.empty()) return;
  const WorkScope recorded("scaled_copy", WorkClass::kCopy, [&](Work& work) {
    for (const Copy& copy : copies_) work.reads("from", copy.from).writes("to", copy.to);
  });
  const at::Tensor& first = copies_.front().to;
  if (first.is_meta()) return;
  const bool is_native = std::all_of(copies_.begin(), copies_.end(), [&](const Copy& copy) {
    return copy.from.scalar_type() == at::kFloat && copy.to.scalar_type() == first.scalar_type() &&
           implementation_for(KernelName::kCast, copy.from) != Implementation::kReference &&
           implementation_for(KernelName::kCast, copy.to) == implementation_for(KernelName::kCast, copy.from);
  });
  if (!is_native) {
    for (Copy& copy : copies_) scaled_copy_reference(copy.from, copy.scale, copy.to);
    return;
  }
  if (!table_.defined()) make_table();
  dispatch_dtype(first, [&]<class To>(ElementType<To>) {
    if (implementation_for(KernelName::kCast, first) == Implementation::kCpu) {
      return scaled_copies_cpu<To>(segments_of<CopySegment>(table_), static_cast<std::int64_t>(copies_.size()));
    }
    native_kernels_of<To>().scaled_copies(segments_of<CopySegment>(table_),
                                          table_.segment_of_block.const_data_ptr<std::int32_t>(),
                                          table_.segment_of_block.size(0), native_stream());
  });
}

void scaled_copy(const at::Tensor& from, double scale, at::Tensor& to) {
  ScaledCopies copies;
  copies.add(from, scale, to);
  copies.run();
}

void scaled_copy_reference(const at::Tensor& from, double scale, at::Tensor& to) {
  to.copy_(scale == 1.0 ? from : (to_math(from) * scale).to(to.scalar_type()));
}

at::Tensor host_copy(const at::Tensor& tensor) {
  constexpr std::size_t kMaxPinnedBytes = std::size_t{8} << 30;  // page-locked memory is rounded up to a power of two
  const bool is_pinned = tensor.is_cuda() && tensor.nbytes() <= kMaxPinnedBytes;
  const auto options = at::TensorOptions(tensor.scalar_type()).pinned_memory(is_pinned);
  return at::empty(tensor.sizes(), options).copy_(tensor);
}

}  // namespace lora_train::kernels
