#include "lora_train/kernels/lora.h"

#include <array>

#include "checks.h"
#include "lora_cpu.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/work_record.h"
#include "own_arguments.h"

namespace lora_train::kernels {
namespace {

// big [N, -1] and thin [N, C] with equal rows and dtype; grads of rows(part) x columns(part).
template <class Shape>
void check_product(const char* kernel, const at::Tensor& big, const at::Tensor& thin, const std::vector<LoraPart>& parts,
                   const Shape& shape) {
  check_rows(kernel, "big side", big, {-1, -1});
  check_rows(kernel, "thin side", thin, {big.size(0), -1});
  check_floating(kernel, "big side", big);
  check_dtype(kernel, "thin side", thin, big.scalar_type());
  if (parts.size() > kMostLoraTargets) throw ShapeError(kernel, "more parts than a projection has linears");
  for (const LoraPart& part : parts) {
    if (part.column < 0 || part.rank < 1 || part.column + part.rank > thin.size(1)) {
      throw ShapeError(kernel, "a part whose columns the thin side does not have");
    }
    check_rows(kernel, "grad", part.grad, shape(part));
    check_dtype(kernel, "grad", part.grad, math_dtype(big));
  }
}

LoraTargets targets_of(const std::vector<LoraPart>& parts) {
  LoraTargets targets{};
  for (const LoraPart& part : parts) {
    targets.list[targets.count++] = {part.column, part.rank, part.out_begin, part.out_end, static_cast<float>(part.scale),
                                     {static_cast<float*>(part.grad.mutable_data_ptr()), part.grad.stride(0)}};
  }
  return targets;
}

void describe(Work& work, const LoraProduct& product, const at::Tensor& big, const at::Tensor& thin,
              const std::vector<LoraPart>& parts) {
  work.reads("big", big, product.num_passes()).reads("thin", thin);
  for (const LoraPart& part : parts) work.updates("grad", part.grad);
  work.launches(2 * product.num_passes());
  const std::int64_t elements = product.num_passes() * product.chunks().workspace_elements;
  work.passes_through("partial sums", elements * static_cast<std::int64_t>(sizeof(float)));
  work.multiplies(product.flops());
}

}  // namespace

void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts) {
  constexpr auto kName = "lora_grad_b";
  check_product(kName, dy, s, parts, [](const LoraPart& part) {
    return std::array<std::int64_t, 2>{part.out_end - part.out_begin, part.rank};
  });
  for (const LoraPart& part : parts) {
    if (part.out_begin < 0 || part.out_end > dy.size(1)) throw ShapeError(kName, "a part whose outputs dy does not have");
  }
  const std::int64_t N = dy.size(0);
  const WorkScope recorded(kName, WorkClass::kLora, [&](Work& work) {
    describe(work, lora_product_b(targets_of(parts), N), dy, s, parts);
  });
  if (dy.is_meta() || parts.empty()) return;
  const Implementation how = implementation_for(KernelName::kLora, dy);
  if (how == Implementation::kReference) return lora_grad_b_reference(dy, s, parts);
  const LoraTargets targets = targets_of(parts);
  with_cpu_type(dy, [&]<class T>(CpuType<T>) {
    if (how == Implementation::kCpu) return lora_grad_b_cpu<T>(read_rows<T>(dy), read_rows<T>(s), targets, N);
    own_kernels_of<T>().lora_grad_b(read_rows<T>(dy), read_rows<T>(s), targets, N,
                                    own_workspace(lora_product_b(targets, N).chunks().workspace_elements), own_stream());
  });
}

void lora_grad_a(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts) {
  constexpr auto kName = "lora_grad_a";
  const std::int64_t N = x.size(0), D = x.size(1);
  check_product(kName, x, ds, parts, [&](const LoraPart& part) { return std::array<std::int64_t, 2>{part.rank, D}; });
  const WorkScope recorded(kName, WorkClass::kLora, [&](Work& work) {
    describe(work, lora_product_a(targets_of(parts), N, D), x, ds, parts);
  });
  if (x.is_meta() || parts.empty()) return;
  const Implementation how = implementation_for(KernelName::kLora, x);
  if (how == Implementation::kReference) return lora_grad_a_reference(ds, x, parts);
  const LoraTargets targets = targets_of(parts);
  with_cpu_type(x, [&]<class T>(CpuType<T>) {
    if (how == Implementation::kCpu) return lora_grad_a_cpu<T>(read_rows<T>(ds), read_rows<T>(x), targets, N, D);
    own_kernels_of<T>().lora_grad_a(read_rows<T>(ds), read_rows<T>(x), targets, N, D,
                                    own_workspace(lora_product_a(targets, N, D).chunks().workspace_elements), own_stream());
  });
}

}  // namespace lora_train::kernels
