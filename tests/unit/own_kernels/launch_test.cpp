// The CPU side of launch.h itself: barriers, shuffles, shared memory, and what it refuses.
#include "kernels/launch.h"

#include <gtest/gtest.h>

#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::kernels {
namespace {

__global__ void write_place(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = static_cast<int>(threadIdx.x + 100 * blockIdx.x + 10000 * blockIdx.y);
}

TEST(Launch, RunsEveryThreadOfEveryBlock) {
  std::vector<int> out(3 * 2 * 64, -1);
  launch("write_place", write_place, {3, 2}, 64, nullptr, out.data());
  for (int i = 0; i < 3 * 2 * 64; ++i) {
    EXPECT_EQ(out[static_cast<std::size_t>(i)], i % 64 + 100 * (i / 64 % 3) + 10000 * (i / 192));
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
    for (int i = 0; i < 128; ++i) values[static_cast<std::size_t>(i)] = i;
    launch("reverse_twice", reverse_twice, {1}, 128, nullptr, values.data());
    for (int i = 0; i < 128; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], i + 2);
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

TEST(Launch, RefusesThreadsThatWaitInVain) {
  EXPECT_THROW(launch("half_waits", half_waits, {1}, 64, nullptr), ShapeError);
  EXPECT_THROW(launch("two_barriers", two_barriers, {1}, 64, nullptr), ShapeError);
  std::vector<int> out(32);
  EXPECT_THROW(launch("half_warp_shuffles", half_warp_shuffles, {1}, 32, nullptr, out.data()), ShapeError);
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
