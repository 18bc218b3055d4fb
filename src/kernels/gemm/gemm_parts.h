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

// Products of blocks by oneDNN's micro-kernels, which LibTorch exports: at the rate of the multipliers as long as the
// operands are in a cache. x86-64-v4 only.

/// A [M, K], C [M, N]; B fp32 [K, N], or bf16 in pairs of rows [K / 2, N, 2], K even. ld: elements between rows (of B
/// in bf16: half of those between pairs).
struct BlockProduct {
  std::int64_t M, N, K, lda, ldb, ldc;
  bool adds = false;
};

/// C = A B, or if it adds C += A B; sums in fp32, along K in order. Each thread keeps a generated kernel for every set
/// of sizes for ever (60 us, some KiB), so sizes must be few.
void brgemm(const BlockProduct& product, const float* a, const float* b, float* c);
void brgemm(const BlockProduct& product, const Bf16* a, const Bf16* b, float* c);
/// Call after the last product of a thread's part: frees its AMX tiles.
void end_brgemm();

/// y = alpha a b + bias + residual. X: elements of a and of the products, W: of b, Y: of the rest. An fp32 X may go
/// with a bf16 W.
template <class X, class W, class Y>
struct PackedGemm {
  Rows<const X> a;  ///< [M, K]; in bf16 K is even
  const W* b;       ///< [num_b_rows, N], or if transposed [N, num_b_rows]
  std::int64_t b_stride;
  bool is_b_transposed;
  const Y* bias;           ///< null: none
  Rows<const Y> residual;  ///< data null: none; may be y
  Rows<Y> y;
  float alpha;
  std::int64_t M, N, K;
  std::int64_t num_b_rows;  ///< at most K; below them b is zero
};

/// Packs b on the way. The bits of an element depend on neither M, N nor the number of threads. Only if
/// has_avx512(): on x86-64-v4.
template <class X, class W, class Y>
void packed_gemm_cpu(const PackedGemm<X, W, Y>& p);

}  // namespace lora_train::kernels
