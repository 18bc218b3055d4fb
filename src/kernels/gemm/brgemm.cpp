#include <ATen/native/CPUBlas.h>

#include "gemm_parts.h"

namespace lora_train::kernels {

void brgemm(const BlockProduct& p, const float* a, const float* b, float* c) {
  at::native::cpublas::brgemm(p.M, p.N, p.K, p.lda, p.ldb, p.ldc, p.adds, a, b, c, /*is_vnni=*/false);
}

void brgemm(const BlockProduct& p, const Bf16* a, const Bf16* b, float* c) {
  const auto* const bf16_a = reinterpret_cast<const at::BFloat16*>(a);
  const auto* const bf16_b = reinterpret_cast<const at::BFloat16*>(b);
  at::native::cpublas::brgemm(p.M, p.N, p.K, p.lda, p.ldb, p.ldc, p.adds, bf16_a, bf16_b, c, /*is_vnni=*/true);
}

void end_brgemm() { at::native::cpublas::brgemm_release(/*is_vnni=*/true); }

}  // namespace lora_train::kernels
