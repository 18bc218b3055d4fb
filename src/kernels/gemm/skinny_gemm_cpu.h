// Contract in skinny_gemm.h. T and Y are float or Bf16; Y is T or float.
#pragma once

#include "launch/rows.h"

namespace lora_train::kernels {

template <class T, class Y>
struct SkinnyGemm {
  Rows<const T> x, weight;
  const Y* bias;           ///< null: none
  Rows<const Y> residual;  ///< data null: none
  Rows<Y> y;
  float alpha;
  std::int64_t M, N, K;
};

template <class T, class Y>
void skinny_gemm_cpu(const SkinnyGemm<T, Y>& p);

/// False for an x86 CPU without AVX-512.
bool has_bf16_gemm();

}  // namespace lora_train::kernels
