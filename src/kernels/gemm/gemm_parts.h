// Contract of skinny_gemm in gemm.h. X, W and Y: elements of x, the weight and y, float or Bf16. No torch.
#pragma once

#include "launch/elements.h"

namespace lora_train::kernels {

template <class X, class W, class Y>
struct SkinnyGemm {
  using Weight = W;
  Rows<const X> x;
  Rows<const W> weight;
  const Y* bias;           ///< null: none
  Rows<const Y> residual;  ///< data null: none
  Rows<Y> y;
  float alpha;
  std::int64_t M, N, K;
};

template <class X, class W, class Y>
void skinny_gemm_cpu(const SkinnyGemm<X, W, Y>& p);

/// False for an x86 CPU without AVX-512.
bool has_bf16_gemm();

}  // namespace lora_train::kernels
