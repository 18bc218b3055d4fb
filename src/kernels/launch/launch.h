// The launch layer: one source for GPU and CPU. nvcc compiles a `.cu` for the GPU; for tests, the host compiler
// compiles the same file with LORA_TRAIN_ON_CPU, and tests/support/on_cpu.h emulates grid, block, shared memory,
// barriers and warp shuffles. Kernels are plain CUDA (threadIdx, __shared__, __syncthreads, __shfl_xor_sync) and use
// nothing that on_cpu.h lacks (atomics, dynamic shared memory). No torch here.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "elements.h"
#include "lora_train/base/error.h"

#ifdef LORA_TRAIN_ON_CPU
#include "support/on_cpu.h"
#define LORA_TRAIN_UNROLL
#define LORA_TRAIN_NO_UNROLL
#else
#define LORA_TRAIN_UNROLL _Pragma("unroll")
#define LORA_TRAIN_NO_UNROLL _Pragma("unroll 1")
#include <cuda_runtime.h>

/// An array in shared memory, uninitialised.
#define LORA_TRAIN_SHARED(type, name, count) __shared__ alignas(16) type name[count]
#endif

namespace lora_train::kernels {

/// The grid of a launch, in blocks.
struct Grid {
  std::int64_t x = 1, y = 1;
};

constexpr std::int64_t kMaxBlocksX = 2147483647, kMaxBlocksY = 65535;

constexpr unsigned kWarpSize = 32;
constexpr unsigned kFullWarp = 0xFFFFFFFFu;

/// Launches kernel(args...) on a grid of blocks of `threads` (a multiple of 32, at most 1024), in stream order. An
/// empty grid launches nothing. x is at most 2^31 - 1, y at most 65535. Throws DeviceError naming `name` if the launch
/// fails.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, unsigned threads, Stream stream,
            Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  if (grid.x < 0 || grid.x > kMaxBlocksX || grid.y < 0 || grid.y > kMaxBlocksY) {
    throw ShapeError(name, "a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) +
                               " blocks; expected at most 2147483647 x 65535");
  }
#ifdef LORA_TRAIN_ON_CPU
  (void)stream;
  on_cpu::submit([=] {
    on_cpu::run_grid(name, static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), threads,
                     [&] { kernel(static_cast<Parameters>(arguments)...); });
  });
#else
  // In a header, clang-format mistakes a launch for comparisons.
  // clang-format off
  kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)), dim3(threads), 0,
           static_cast<cudaStream_t>(stream)>>>(static_cast<Parameters>(arguments)...);
  // clang-format on
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw DeviceError(name, std::string("CUDA refused to launch it, or a kernel before it failed: ") +
                                cudaGetErrorString(error) +
                                "; lora-train doctor checks every kernel against its reference");
  }
#endif
}

/// The elements that a thread takes together, as a constant.
template <int kSize>
using PackSize = std::integral_constant<int, kSize>;

/// Calls run() with the size of packs of T that a kernel is to use: 16 bytes if the rows allow it, else one element.
template <class T, class Run>
void with_packs(bool are_allowed, const Run& run) {
  are_allowed ? run(PackSize<kFullPack<T>>()) : run(PackSize<1>());
}

/// threadIdx.x, read from the GPU again, so that values derived from it need not stay in registers.
__device__ __forceinline__ unsigned thread_index_again() {
#ifdef LORA_TRAIN_ON_CPU
  return threadIdx.x;
#else
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
#endif
}

/// A block copies, or clears, the `width` elements of a row in packs of kSize.
template <int kSize, class T>
__device__ __forceinline__ void copy_row(const T* from, T* to, std::int64_t width) {
  for (std::int64_t i = std::int64_t{threadIdx.x} * kSize; i < width; i += std::int64_t{blockDim.x} * kSize) {
    store_pack<kSize>(to + i, load_pack<kSize>(from + i));
  }
}
template <int kSize, class T>
__device__ __forceinline__ void clear_row(T* to, std::int64_t width) {
  for (std::int64_t i = std::int64_t{threadIdx.x} * kSize; i < width; i += std::int64_t{blockDim.x} * kSize) {
    store_pack(to + i, Pack<T, kSize>{});
  }
}

/// The number of blocks that cover `count` elements, `per_block` each: ceil(count / per_block).
constexpr std::int64_t blocks_for(std::int64_t count, std::int64_t per_block) {
  return (count + per_block - 1) / per_block;
}

/// Lanes for a row of `packs`: a power of 2, at most a warp.
inline unsigned lanes_for(std::int64_t packs) {
  unsigned lanes = 1;
  while (lanes < packs && lanes < kWarpSize) lanes *= 2;
  return lanes;
}

/// Sum or maximum over the 32 lanes; every lane gets it. The order of additions is fixed.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// Sum over `lanes` (a power of 2) neighbouring lanes; all lanes of the warp call it.
__device__ __forceinline__ float group_sum(float value, unsigned lanes) {
  for (unsigned offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, offset));
  return value;
}

/// Sum over a block of at most 1024 threads; every thread gets it. `slots` is shared memory of 32 elements that nothing
/// else uses until the next barrier after it. All threads of the block call it. T is float or double.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* slots) {
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) slots[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const unsigned num_warps = blockDim.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const T sum = warp_sum(lane < num_warps ? slots[lane] : T{0});
  __syncthreads();  // the slots may be used again
  return sum;
}

__device__ __forceinline__ float block_max(float value, float* slots) {
  value = warp_max(value);
  if (threadIdx.x % kWarpSize == 0) slots[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const unsigned num_warps = blockDim.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const float largest = warp_max(lane < num_warps ? slots[lane] : slots[0]);
  __syncthreads();
  return largest;
}

/// The sigmoid of x. bf16 does not need the last bits of exponential and quotient.
template <class T>
__device__ __forceinline__ float sigmoid_for(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return 1.0F / (1.0F + expf(-x));
  } else {
    return __fdividef(1.0F, 1.0F + __expf(-x));
  }
}

// Warp-level tensor-core operations (sm_80 and later): functions that all 32 lanes call. On the CPU, on_cpu.h emulates
// them. For lane l: g = l / 4, q = l % 4. A register holds two bf16, the first in its low half. Layouts: PTX ISA,
// "Matrix fragments for mma.m16n8k16 with floating point type", "movmatrix" and "ldmatrix".

#ifdef LORA_TRAIN_ON_CPU

inline void multiply_add_16x8x16(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                 int line = __builtin_LINE()) {
  on_cpu::multiply_add_16x8x16(sums, a, b0, b1, line);
}
inline std::uint32_t transpose_8x8(std::uint32_t row, int line = __builtin_LINE()) {
  return on_cpu::transpose_8x8(row, line);
}
template <bool kTransposed>
void load_four_8x8(std::uint32_t (&matrices)[4], const void* row, int line = __builtin_LINE()) {
  on_cpu::load_four_8x8(matrices, row, kTransposed, line);
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

/// Transposes a matrix [8, 8] of 16-bit elements: a lane passes columns 2q, 2q + 1 of row g, and gets rows 2q, 2q + 1
/// of column g.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t row) {
  std::uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

/// Loads four matrices [8, 8] of 16-bit elements from shared memory: a lane passes row l % 8 of matrix l / 8 (8
/// elements, aligned to 16 bytes), and gets of each matrix columns 2q, 2q + 1 of row g; if transposed, rows 2q, 2q + 1
/// of column g.
template <bool kTransposed>
__device__ __forceinline__ void load_four_8x8(std::uint32_t (&matrices)[4], const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  }
}

#endif

}  // namespace lora_train::kernels
