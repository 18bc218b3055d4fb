// Products on a CPU. No torch.
#pragma once

#include "launch/elements.h"

namespace at {
class Tensor;
}

namespace lora_train::kernels {

struct GemmExtras;

/// gemm() in fp32: copies bf16 operands a part at a time, and rounds once. For a bf16 b beside an fp32 a, and for
/// processors without bf16 products, where ATen's take 6 to more than 100 times as long.
void gemm_widened(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras);

/// Contract: skinny_gemm in gemm.h. X, W and Y: elements of x, the weight and y, float or Bf16.
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

/// False for an x86 CPU below x86-64-v4 (AVX-512): oneDNN multiplies no bf16 there.
bool has_bf16_gemm();

}  // namespace lora_train::kernels
