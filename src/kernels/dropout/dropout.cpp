#include "lora_train/kernels/dropout/dropout.h"

#include <cmath>

#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "dropout_cpu.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::kernels {

void dropout_forward(const at::Tensor& x, const at::Tensor& token_document, const at::Tensor& token_position,
                     const at::Tensor& key, double p, at::Tensor& y) {
  constexpr auto kName = "dropout_forward";
  check_rows(kName, "x", x, {-1, -1});
  check_floating(kName, "x", x);
  check_rows(kName, "y", y, x.sizes(), x.scalar_type());
  check_vector(kName, "token_document", token_document, x.size(0), at::kInt);
  check_vector(kName, "token_position", token_position, x.size(0), at::kInt);
  check_vector(kName, "key", key, 2, at::kInt);
  if (!(p >= 0 && p < 1)) throw ShapeError("dropout_forward: p", "is " + std::to_string(p) + ", expected [0, 1)");
  const WorkScope recorded(kName, WorkClass::kDropout, [&](Work& work) {
    work.reads("x", x).reads("token_document", token_document).reads("token_position", token_position).writes("y", y);
  });
  if (x.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kDropout, x);
  if (how == Implementation::kReference) {
    return dropout_forward_reference(x, token_document, token_position, key, p, y);
  }
  dispatch_dtype(x, [&]<class T>(ElementType<T>) {
    const auto run = [&](auto kernel, auto... stream) {
      kernel(read_rows<T>(x), read<std::int32_t>(token_document), read<std::int32_t>(token_position),
             reinterpret_cast<const PhiloxKey*>(read<std::int32_t>(key)),
             static_cast<std::uint32_t>(std::ceil(p * 16777216.0)), static_cast<float>(1.0 / (1.0 - p)),
             write_rows<T>(y), x.size(0), x.size(1), stream...);
    };
    if (how == Implementation::kCpu) return run(dropout_forward_cpu<T>);
    run(native_kernels_of<T>().dropout_forward, native_stream());
  });
}

}  // namespace lora_train::kernels
