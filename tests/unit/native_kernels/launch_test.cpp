// The CPU side of launch.h itself: barriers, shuffles, shared memory, and what it refuses.
#include "kernels/launch/launch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/launch/elements.h"
#include "lora_train/base/error.h"

namespace lora_train::kernels {
namespace {

__global__ void write_place(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
      static_cast<int>(threadIdx.x + 100 * blockIdx.x + 10000 * blockIdx.y);
}

TEST(Launch, RunsEveryThreadOfEveryBlock) {
  std::vector<int> out(3 * 2 * 64, -1);
  launch("write_place", write_place, {3, 2}, 64, nullptr, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<int>(i % 64 + 100 * (i / 64 % 3) + 10000 * (i / 192)));
  }
}

__global__ void reverse_twice(int* values) {
  LORA_TRAIN_SHARED(int, shared, 128);
  for (int round = 0; round < 2; ++round) {
    shared[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x] + 1;
    __syncthreads();
  }
}

TEST(Launch, BarriersOrderSharedMemory) {
  for (const auto order : {on_cpu::Order::kAscending, on_cpu::Order::kDescending}) {
    on_cpu::set_order(order);
    std::vector<int> values(128);
    std::iota(values.begin(), values.end(), 0);
    launch("reverse_twice", reverse_twice, {1}, 128, nullptr, values.data());
    for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(values[i], static_cast<int>(i) + 2);
  }
  on_cpu::set_order(on_cpu::Order::kAscending);
}

__global__ void sum_all(float* out) {
  LORA_TRAIN_SHARED(float, slots, 32);
  const float value = static_cast<float>(threadIdx.x + 1);
  out[threadIdx.x] = block_sum(value, slots) + 1000000.0F * block_max(value, slots);
}

TEST(Launch, BlockSumAndMaxReachEveryThread) {
  for (const unsigned threads : {32U, 96U, 1024U}) {
    std::vector<float> out(threads);
    launch("sum_all", sum_all, {1}, threads, nullptr, out.data());
    const auto n = static_cast<float>(threads);
    for (const float value : out) EXPECT_FLOAT_EQ(value, n * (n + 1) / 2 + 1000000.0F * n);
  }
}

__global__ void read_shared_unwritten(float* out) {
  LORA_TRAIN_SHARED(float, shared, 32);
  out[blockIdx.x * 32 + threadIdx.x] = shared[threadIdx.x];
  __syncthreads();
  shared[threadIdx.x] = 1;
}

TEST(Launch, SharedMemoryIsPoisonedInEveryBlock) {
  std::vector<float> out(64);
  launch("read_shared_unwritten", read_shared_unwritten, {2}, 32, nullptr, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

__global__ void half_waits() {
  if (threadIdx.x < 32) __syncthreads();
}

__global__ void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void half_warp_shuffles(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(kFullWarp, 1, 1);
}

// Fragments as the PTX ISA gives them: element i of lane l, in the order of the registers.
struct Place {
  unsigned row, column;
};
Place of_a(unsigned lane, unsigned i) {
  const unsigned group = lane >> 2, in_group = lane % 4;
  return {i < 2 || (i >= 4 && i < 6) ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Place of_b(unsigned lane, unsigned i) { return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2}; }
Place of_sums(unsigned lane, unsigned i) { return {(lane >> 2) + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)}; }

struct Operands {
  std::uint32_t a[32][4], b[32][2];
  float sums[64][4];
};

__global__ void multiply_twice(Operands* o) {
  const unsigned lane = threadIdx.x % 32;
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = o->sums[threadIdx.x][i];
  for (int k = 0; k < 2; ++k) multiply_add_16x8x16(sums, o->a[lane], o->b[lane][0], o->b[lane][1]);
  for (int i = 0; i < 4; ++i) o->sums[threadIdx.x][i] = sums[i];
}

TEST(Launch, WarpsMultiplyByTheLayoutOfPtx) {
  const auto of = [](unsigned row, unsigned column) { return static_cast<float>((7 * row + 3 * column) % 11) - 4; };
  const auto pair = [](float low, float high) {
    return std::uint32_t{to_bf16(low).bits} | std::uint32_t{to_bf16(high).bits} << 16;
  };
  for (const auto order : {on_cpu::Order::kAscending, on_cpu::Order::kDescending}) {
    on_cpu::set_order(order);
    Operands o{};
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 8; i += 2) {
        o.a[lane][i / 2] =
            pair(of(of_a(lane, i).row, of_a(lane, i).column), of(of_a(lane, i + 1).row, of_a(lane, i + 1).column));
        if (i < 4)
          o.b[lane][i / 2] = pair(of(5 + of_b(lane, i).row, of_b(lane, i).column),
                                  of(5 + of_b(lane, i + 1).row, of_b(lane, i + 1).column));
      }
      for (unsigned i = 0; i < 4; ++i) o.sums[lane][i] = o.sums[lane + 32][i] = 0.5F;
    }
    launch("multiply_twice", multiply_twice, {1}, 64, nullptr, &o);
    for (unsigned thread = 0; thread < 64; ++thread) {
      for (unsigned i = 0; i < 4; ++i) {
        const Place place = of_sums(thread % 32, i);
        float want = 0.5F;
        for (unsigned k = 0; k < 16; ++k) want += 2 * of(place.row, k) * of(5 + k, place.column);
        EXPECT_EQ(o.sums[thread][i], want) << thread << " " << i;
      }
    }
  }
  on_cpu::set_order(on_cpu::Order::kAscending);
}

__global__ void transpose(std::uint32_t* values) { values[threadIdx.x] = transpose_8x8(values[threadIdx.x]); }

TEST(Launch, WarpsTransposeEightByEight) {
  // Lane l gives elements 2l and 2l + 1 of a row-major matrix, and gets those of its transpose.
  std::vector<std::uint32_t> values(32);
  const auto pair = [](unsigned first, unsigned second) { return (first + 100) | (second + 100) << 16; };
  for (unsigned lane = 0; lane < 32; ++lane) values[lane] = pair(2 * lane, 2 * lane + 1);
  launch("transpose", transpose, {1}, 32, nullptr, values.data());
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned row = 2 * lane / 8, column = 2 * lane % 8;  // of the transpose
    EXPECT_EQ(values[lane], pair(column * 8 + row, (column + 1) * 8 + row)) << lane;
  }
}

template <bool kTransposed>
__global__ void load_matrices(std::uint32_t* out) {
  LORA_TRAIN_SHARED(std::uint16_t, shared, 32 * 8);
  const unsigned lane = threadIdx.x;
  for (unsigned c = 0; c < 8; ++c) shared[lane * 8 + c] = static_cast<std::uint16_t>(lane * 8 + c);
  __syncthreads();
  std::uint32_t matrices[4];
  load_four_8x8<kTransposed>(matrices, shared + (lane ^ 8) * 8);  // matrices 1, 0, 3, 2
  for (unsigned i = 0; i < 4; ++i) out[lane * 4 + i] = matrices[i];
}

TEST(Launch, WarpsLoadFourMatrices) {
  std::vector<std::uint32_t> rows(32 * 4), columns(32 * 4);
  launch("load_matrices", load_matrices<false>, {1}, 32, nullptr, rows.data());
  launch("load_matrices", load_matrices<true>, {1}, 32, nullptr, columns.data());
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned first = (i ^ 1) * 64, along = lane / 4, pair = lane % 4 * 2;
      const unsigned row = first + along * 8 + pair, column = first + pair * 8 + along;
      EXPECT_EQ(rows[lane * 4 + i], row | (row + 1) << 16) << lane << " " << i;
      EXPECT_EQ(columns[lane * 4 + i], column | (column + 8) << 16) << lane << " " << i;
    }
  }
}

__global__ void half_warp_multiplies() {
  float sums[4] = {};
  const std::uint32_t a[4] = {};
  if (threadIdx.x < 16) multiply_add_16x8x16(sums, a, 0, 0);
}

__global__ void other_half_transposes() {
  if (threadIdx.x < 16) {
    transpose_8x8(0);
  } else {
    transpose_8x8(0);
  }
}

TEST(Launch, RefusesThreadsThatWaitInVain) {
  EXPECT_THROW(launch("half_waits", half_waits, {1}, 64, nullptr), ShapeError);
  EXPECT_THROW(launch("two_barriers", two_barriers, {1}, 64, nullptr), ShapeError);
  std::vector<int> out(32);
  EXPECT_THROW(launch("half_warp_shuffles", half_warp_shuffles, {1}, 32, nullptr, out.data()), ShapeError);
  EXPECT_THROW(launch("half_warp_multiplies", half_warp_multiplies, {1}, 32, nullptr), ShapeError);
  EXPECT_THROW(launch("other_half_transposes", other_half_transposes, {1}, 32, nullptr), ShapeError);
  launch("write_place", write_place, {1, 1}, 32, nullptr, out.data());  // and goes on
  EXPECT_EQ(out[31], 31);
}

TEST(Launch, RefusesBlocksThatNoGpuTakes) {
  EXPECT_THROW(launch("half_waits", half_waits, {1}, 33, nullptr), ShapeError);
  EXPECT_THROW(launch("half_waits", half_waits, {1}, 2048, nullptr), ShapeError);
  EXPECT_THROW(launch("half_waits", half_waits, {1, 70000}, 32, nullptr), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
