#include "lora_train/kernels/cast.h"

#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "lora_train/kernels/work_record.h"

namespace lora_train::kernels {
namespace {

template <class From>
void copy_on_cuda(const at::Tensor& from, double scale, at::Tensor& to) {
  const bool is_matrix = to.dim() == 2;
  const int64_t num_rows = is_matrix ? to.size(0) : 1, width = to.size(-1);
  const auto run = [&]<class To>(ElementType<To>, auto kernel) {
    kernel({read<From>(from), is_matrix ? from.stride(0) : width}, static_cast<float>(scale),
           {write<To>(to), is_matrix ? to.stride(0) : width}, num_rows, width, native_stream());
  };
  if (to.scalar_type() == at::kFloat) {
    run(ElementType<float>(), native_kernels_of<From>().scaled_copy_to_f32);
  } else {
    run(ElementType<Bf16>(), native_kernels_of<From>().scaled_copy_to_bf16);
  }
}

}  // namespace

void scaled_copy(const at::Tensor& from, double scale, at::Tensor& to) {
  constexpr auto kName = "scaled_copy";
  if (from.dim() != 1) check_rows(kName, "from", from, {-1, -1});
  check_rows(kName, "to", to, from.sizes());
  for (const auto& [name, t] : {std::pair{"from", from}, {"to", to}}) {
    if (t.dim() == 1) check_contiguous(kName, name, t);
    check_floating(kName, name, t);
  }
  const WorkScope recorded(kName, WorkClass::kCopy, [&](Work& work) { work.reads("from", from).writes("to", to); });
  if (to.is_meta()) return;
  const bool is_own = implementation_for(KernelName::kCast, from) == Implementation::kCuda &&
                      implementation_for(KernelName::kCast, to) == Implementation::kCuda;
  if (!is_own) return scaled_copy_reference(from, scale, to);  // on a CPU too: ATen is as fast
  dispatch_dtype(from, [&]<class From>(ElementType<From>) { copy_on_cuda<From>(from, scale, to); });
}

void scaled_copy_reference(const at::Tensor& from, double scale, at::Tensor& to) {
  to.copy_(scale == 1.0 ? from : (to_math(from) * scale).to(to.scalar_type()));
}

}  // namespace lora_train::kernels
