// Emulates CUDA kernels on the host. Every thread of a block is a fiber, so that barriers and warp shuffles behave as
// on a GPU. For tests: slow, one block at a time, in the calling thread. Tensor-core operations are in launch.h.
//
// It reports errors with which a GPU would silently give wrong results: all threads of a block must reach the same
// __syncthreads() and all lanes of a warp the same shuffle (else run_grid throws and names both lines); shared memory
// is poisoned with 0xFF bytes (NaN) when a block begins; set_order() reverses the order of threads and blocks, so that
// a missing barrier changes the result in one of the two orders. A warp runs until it waits for the rest of its block.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
/// An array in shared memory, poisoned at the start of each block.
#define LORA_TRAIN_SHARED(type, name, count) \
  alignas(16) static type name[count];       \
  ::lora_train::kernels::on_cpu::enter_shared(name, sizeof name)
#define __syncthreads() ::lora_train::kernels::on_cpu::sync_block(__LINE__)
#define __shfl_xor_sync(mask, value, lane_mask)                                                                    \
  ::lora_train::kernels::on_cpu::shuffle(mask, value, ::lora_train::kernels::on_cpu::lane() ^ unsigned(lane_mask), \
                                         __LINE__)

namespace lora_train::kernels::on_cpu {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum class Order { kAscending, kDescending };
/// The order in which threads and blocks run between barriers; ascending by default.
void set_order(Order order);

/// Grids launched since the program started.
std::int64_t num_launches();

/// Runs body() once per thread. Throws ShapeError on a deadlock.
void run_grid(const char* name, unsigned blocks_x, unsigned blocks_y, unsigned threads,
              const std::function<void()>& body);

void sync_block(int line);
unsigned lane();
void enter_shared(void* memory, std::size_t bytes);
/// Runs a launch, or passes it to the launch sink instead.
void submit(std::function<void()> launch);
using LaunchSink = std::function<void(std::function<void()> launch)>;
void use_launch_sink(LaunchSink sink);  ///< captures launches; empty: launches run

/// Exchanges 8 bytes among the lanes of a warp: returns those of lane `source`.
std::uint64_t exchange(std::uint64_t value, unsigned source, int line);

/// The operand registers of a lane in a tensor-core product.
struct Fragments {
  std::uint32_t a[4], b[2];
};
void multiply_add_16x8x16(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, int line);
std::uint32_t transpose_8x8(std::uint32_t row, int line);
void load_four_8x8(std::uint32_t (&matrices)[4], const void* row, bool is_transposed, int line);

template <class T>
T shuffle(unsigned mask, T value, unsigned source, int line) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  (void)mask;  // our kernels shuffle whole warps only
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(bits, source % 32, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace lora_train::kernels::on_cpu

/// CUDA's built-in variables, set for the running fiber.
inline thread_local lora_train::kernels::on_cpu::Index threadIdx, blockIdx, blockDim, gridDim;

/// Byte i of the result is byte (selector >> 4 i) % 8 of x (0 to 3) and y (4 to 7).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return result;
}

inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
using std::exp;
inline float __expf(float x) { return std::exp(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdividef(float a, float b) { return a / b; }
