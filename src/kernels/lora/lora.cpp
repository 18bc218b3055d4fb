#include "lora_train/kernels/lora/lora.h"

#include <array>

#include "dispatch/arguments.h"
#include "lora_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/gemm/gemm.h"

namespace lora_train::kernels {
namespace {

// big [N, -1] and thin [N, C] with equal rows and dtype; grads of rows(part) x columns(part).
template <class Shape>
void check_product(const char* kernel, const at::Tensor& big, const at::Tensor& thin,
                   const std::vector<LoraPart>& parts, const Shape& shape) {
  check_floating(kernel, "big side", big, {-1, -1});
  check_rows(kernel, "thin side", thin, {big.size(0), -1}, big.scalar_type());
  if (parts.size() > kMaxLoraTargets) throw ShapeError(kernel, "more parts than a projection has linears");
  for (const LoraPart& part : parts) {
    if (part.column < 0 || part.rank < 1 || part.column + part.rank > thin.size(1)) {
      throw ShapeError(kernel, "a part has columns beyond the thin side");
    }
    check_rows(kernel, "grad", part.grad, shape(part), math_dtype(big));
  }
}

LoraTargets targets_of(const std::vector<LoraPart>& parts) {
  LoraTargets targets{};
  for (const LoraPart& part : parts) {
    targets.list[targets.count++] = {part.column,
                                     part.rank,
                                     part.out_begin,
                                     part.out_end,
                                     static_cast<float>(part.scale),
                                     {static_cast<float*>(part.grad.mutable_data_ptr()), part.grad.stride(0)}};
  }
  return targets;
}

void describe(Work& work, const LoraProduct& product, const at::Tensor& big, const at::Tensor& thin,
              const std::vector<LoraPart>& parts) {
  work.reads("big", big, product.num_passes()).reads("thin", thin);
  for (const LoraPart& part : parts) work.updates("grad", part.grad);
  std::int64_t launches = 0, elements = 0;
  product.for_each_piece([&](std::int64_t, const LoraProduct& piece) {
    launches += 2 * product.num_passes();
    elements += product.num_passes() * piece.partial_sums();
  });
  work.launches(launches);
  work.passes_through("partial sums", elements * static_cast<std::int64_t>(sizeof(float)));
  work.multiplies(product.flops());
}

/// make(Rows<const T>) for a matrix in memory; a meta tensor counts as at its offset in aligned memory.
template <class Make>
LoraProduct product_for(const at::Tensor& big, const Make& make) {
  const auto rows = [&]<class T>(ElementType<T>) {
    const void* const data =
        big.is_meta() ? reinterpret_cast<const void*>(big.storage_offset() * static_cast<std::int64_t>(sizeof(T)))
                      : big.const_data_ptr();
    return Rows<const T>{static_cast<const T*>(data), big.stride(0)};
  };
  return big.scalar_type() == at::kBFloat16 ? make(rows(ElementType<Bf16>())) : make(rows(ElementType<float>()));
}

void check_outputs(const char* kernel, const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts) {
  check_product(kernel, dy, s, parts, [](const LoraPart& part) {
    return std::array<std::int64_t, 2>{part.out_end - part.out_begin, part.rank};
  });
  for (const LoraPart& part : parts) {
    if (part.out_begin < 0 || part.out_end > dy.size(1)) throw ShapeError(kernel, "a part has outputs beyond dy");
  }
}

/// thin without the unneeded columns before the first part's; shifts the parts to match.
at::Tensor without_columns_before(const at::Tensor& thin, std::vector<LoraPart>& parts) {
  std::int64_t first = thin.size(1);
  for (const LoraPart& part : parts) first = std::min(first, part.column);
  for (LoraPart& part : parts) part.column -= first;
  return thin.narrow(1, first, thin.size(1) - first);
}

}  // namespace

void lora_grad_b(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts) {
  constexpr auto kName = "lora_grad_b";
  check_outputs(kName, dy, s, parts);
  const std::int64_t N = dy.size(0);
  const LoraTargets targets = targets_of(parts);
  const LoraProduct product = product_for(dy, [&](auto rows) { return lora_product_b(rows, targets, N); });
  const WorkScope recorded(kName, WorkClass::kLora, [&](Work& work) { describe(work, product, dy, s, parts); });
  if (parts.empty()) return;
  const auto reference = [&] { lora_grad_b_reference(dy, s, parts); };
  run_kernel(KernelName::kLora, dy, reference, [&]<class T>(ElementType<T>, Implementation how) {
    if (how == Implementation::kCpu) return lora_grad_b_cpu<T>(read_rows<T>(dy), read_rows<T>(s), targets, N);
    native_kernels_of<T>().lora_grad_b(read_rows<T>(dy), read_rows<T>(s), targets, product,
                                       native_workspace(product.workspace_elements()), native_stream());
  });
}

void lora_grad_a(const at::Tensor& all_ds, const at::Tensor& x, const std::vector<LoraPart>& all_parts) {
  constexpr auto kName = "lora_grad_a";
  const std::int64_t N = x.size(0), D = x.size(1);
  check_product(kName, x, all_ds, all_parts, [&](const LoraPart& part) {
    return std::array<std::int64_t, 2>{part.rank, D};
  });
  std::vector<LoraPart> parts = all_parts;
  const at::Tensor ds = without_columns_before(all_ds, parts);
  const LoraTargets targets = targets_of(parts);
  const LoraProduct product = product_for(x, [&](auto rows) { return lora_product_a(rows, targets, N, D); });
  const WorkScope recorded(kName, WorkClass::kLora, [&](Work& work) {
    describe(work, product, x, ds.narrow(1, 0, targets.num_columns()), parts);
  });
  if (parts.empty()) return;
  const auto reference = [&] { lora_grad_a_reference(ds, x, parts); };
  run_kernel(KernelName::kLora, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    if (how == Implementation::kCpu) return lora_grad_a_cpu<T>(read_rows<T>(ds), read_rows<T>(x), targets, N, D);
    native_kernels_of<T>().lora_grad_a(read_rows<T>(ds), read_rows<T>(x), targets, product,
                                       native_workspace(product.workspace_elements()), native_stream());
  });
}

void lora_grad_s_and_b(const at::Tensor& dy, const at::Tensor& scaled_b, const at::Tensor& s, at::Tensor& ds,
                       const std::vector<LoraPart>& parts) {
  constexpr auto kName = "lora_grad_s_and_b";
  check_outputs(kName, dy, s, parts);
  const std::int64_t N = dy.size(0), C = s.size(1);
  check_rows(kName, "sB", scaled_b, {dy.size(1), C}, dy.scalar_type());
  check_rows(kName, "dS", ds, {N, C}, dy.scalar_type());
  const LoraTargets targets = targets_of(parts);
  const LoraProduct product = product_for(dy, [&](auto rows) { return lora_product_s_and_b(rows, targets, N); });
  if (!product.with_ds) {
    gemm(dy, scaled_b, ds, {.work_class = WorkClass::kLora});
    return lora_grad_b(dy, s, parts);
  }
  const WorkScope recorded(kName, WorkClass::kLora, [&](Work& work) {
    describe(work, product, dy, s, parts);
    work.reads("sB", scaled_b).writes("dS", ds);
  });
  if (dy.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kLora, dy);
  if (how == Implementation::kReference) return lora_grad_s_and_b_reference(dy, scaled_b, s, ds, parts);
  if (how == Implementation::kCpu) {
    gemm(dy, scaled_b, ds);
    return lora_grad_b(dy, s, parts);
  }
  native_kernels().lora_grad_s_and_b(read_rows<Bf16>(dy), read_rows<Bf16>(scaled_b), read_rows<Bf16>(s), targets,
                                     product, C, write_rows<Bf16>(ds), native_workspace(product.workspace_elements()),
                                     native_stream());
}

void lora_grad_b_reference(const at::Tensor& dy, const at::Tensor& s, const std::vector<LoraPart>& parts) {
  for (const LoraPart& part : parts) {
    const at::Tensor dy_part = to_math(dy.narrow(1, part.out_begin, part.out_end - part.out_begin));
    part.grad.add_(at::mm(dy_part.t(), to_math(s.narrow(1, part.column, part.rank))), part.scale);
  }
}

void lora_grad_a_reference(const at::Tensor& ds, const at::Tensor& x, const std::vector<LoraPart>& parts) {
  for (const LoraPart& part : parts) {
    part.grad.add_(at::mm(to_math(ds.narrow(1, part.column, part.rank)).t(), to_math(x)), part.scale);
  }
}

void lora_grad_s_and_b_reference(const at::Tensor& dy, const at::Tensor& scaled_b, const at::Tensor& s, at::Tensor& ds,
                                 const std::vector<LoraPart>& parts) {
  gemm_reference(dy, scaled_b, ds);
  lora_grad_b_reference(dy, s, parts);
}

}  // namespace lora_train::kernels
