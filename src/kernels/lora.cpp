#include "lora_train/kernels/lora.h"

#include "checks.h"
#include "cpu_arguments.h"
#include "lora_cpu.h"

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

}  // namespace

void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, double scale, at::Tensor& grad_b) {
  check_product("lora_grad_b", dy, s, grad_b, dy.size(1), s.size(1));
  if (!has_cpu_kernel(dy)) {
    return lora_grad_b_reference(dy, s, scale, grad_b);
  }
  with_cpu_type(dy, [&]<class T>(CpuType<T>) {
    lora_grad_b_cpu(read_rows<T>(dy), read_rows<T>(s), static_cast<float>(scale), write_rows<float>(grad_b), dy.size(0),
                    dy.size(1), s.size(1));
  });
}

void lora_grad_a(const at::Tensor& ds, const at::Tensor& x, at::Tensor& grad_a) {
  check_product("lora_grad_a", x, ds, grad_a, ds.size(1), x.size(1));
  if (!has_cpu_kernel(x)) {
    return lora_grad_a_reference(ds, x, grad_a);
  }
  with_cpu_type(x, [&]<class T>(CpuType<T>) {
    lora_grad_a_cpu(read_rows<T>(ds), read_rows<T>(x), write_rows<float>(grad_a), x.size(0), x.size(1), ds.size(1));
  });
}

}  // namespace lora_train::kernels
