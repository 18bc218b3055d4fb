#include "lora_train/kernels/lora.h"

#include "checks.h"
#include "lora_cpu.h"
#include "lora_train/kernels/work_record.h"
#include "own_arguments.h"

namespace lora_train::kernels {
namespace {

// big [N, C] and thin [N, R] with equal rows and dtype.
void check_product(const char* kernel, const at::Tensor& big, const at::Tensor& thin, const at::Tensor& grad,
                   int64_t rows, int64_t columns) {
  check_rows(kernel, "big side", big, {-1, -1});
  check_rows(kernel, "thin side", thin, {big.size(0), -1});
  check_floating(kernel, "big side", big);
  check_dtype(kernel, "thin side", thin, big.scalar_type());
  check_rows(kernel, "grad", grad, {rows, columns});
  check_dtype(kernel, "grad", grad, math_dtype(big));
}

void describe(Work& work, const at::Tensor& big, const at::Tensor& thin, const at::Tensor& grad) {
  const std::int64_t R = thin.size(1), passes = (R + kLoraRanks - 1) / kLoraRanks;
  const LoraChunks chunks = lora_chunks(big.size(0), big.size(1), R);
  work.reads("big", big, passes).reads("thin", thin).updates("grad", grad).launches(2 * passes);
  work.passes_through("partial sums", passes * chunks.workspace_elements * static_cast<std::int64_t>(sizeof(float)));
  work.multiplies(2 * big.size(0) * big.size(1) * R);
}

float* workspace_for(const at::Tensor& big, const at::Tensor& thin) {
  return own_workspace(lora_chunks(big.size(0), big.size(1), thin.size(1)).workspace_elements);
}

}  // namespace

void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, double scale, at::Tensor& grad_b) {
  check_product("lora_grad_b", dy, s, grad_b, dy.size(1), s.size(1));
  const WorkScope recorded("lora_grad_b", WorkClass::kLora, [&](Work& work) { describe(work, dy, s, grad_b); });
  if (dy.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kLora, dy);
  if (how == Implementation::kReference) return lora_grad_b_reference(dy, s, scale, grad_b);
  with_cpu_type(dy, [&]<class T>(CpuType<T>) {
    const auto run = [&](auto kernel, auto... more) {
      kernel(read_rows<T>(dy), read_rows<T>(s), static_cast<float>(scale), write_rows<float>(grad_b), dy.size(0),
             dy.size(1), s.size(1), more...);
    };
    how == Implementation::kCpu ? run(lora_grad_b_cpu<T>)
                                : run(own_kernels_of<T>().lora_grad_b, workspace_for(dy, s), own_stream());
  });
}

void lora_grad_a(const at::Tensor& ds, const at::Tensor& x, at::Tensor& grad_a) {
  check_product("lora_grad_a", x, ds, grad_a, ds.size(1), x.size(1));
  const WorkScope recorded("lora_grad_a", WorkClass::kLora, [&](Work& work) { describe(work, x, ds, grad_a); });
  if (x.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kLora, x);
  if (how == Implementation::kReference) return lora_grad_a_reference(ds, x, grad_a);
  with_cpu_type(x, [&]<class T>(CpuType<T>) {
    const auto run = [&](auto kernel, auto... more) {
      kernel(read_rows<T>(ds), read_rows<T>(x), write_rows<float>(grad_a), x.size(0), x.size(1), ds.size(1), more...);
    };
    how == Implementation::kCpu ? run(lora_grad_a_cpu<T>)
                                : run(own_kernels_of<T>().lora_grad_a, workspace_for(x, ds), own_stream());
  });
}

}  // namespace lora_train::kernels
