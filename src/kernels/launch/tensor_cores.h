// Warp-level tensor-core operations (sm_80 and later): device functions that all 32 lanes call. On the CPU, on_cpu.h emulates
// them. For lane l: g = l / 4, q = l % 4. A register holds two bf16, the first in its low half. Layouts: PTX ISA, "Matrix
// fragments for mma.m16n8k16 with floating point type" and "movmatrix".
#pragma once

#include "launch.h"

namespace lora_train::kernels {

#ifdef LORA_TRAIN_ON_CPU

inline void multiply_add_16x8x16(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                 int line = __builtin_LINE()) {
  on_cpu::multiply_add_16x8x16(sums, a, b0, b1, line);
}
inline std::uint32_t transpose_8x8(std::uint32_t row, int line = __builtin_LINE()) {
  return on_cpu::transpose_8x8(row, line);
}

#else

/// sums [16, 8] += a [16, 16] b [16, 8], bf16 products summed in fp32. A lane holds
///   of a     rows g (registers 0, 2) and g + 8 (1, 3), columns 2q, 2q + 1 (0, 1) and 2q + 8, 2q + 9 (2, 3)
///   of b     column g, rows 2q, 2q + 1 (b0) and 2q + 8, 2q + 9 (b1)
///   of sums  columns 2q, 2q + 1, of row g (0, 1) and of row g + 8 (2, 3)
__device__ __forceinline__ void multiply_add_16x8x16(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                     std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Transposes a matrix [8, 8] of 16-bit elements: a lane passes columns 2q, 2q + 1 of row g, and gets rows 2q, 2q + 1 of
/// column g.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t row) {
  std::uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

#endif

}  // namespace lora_train::kernels
