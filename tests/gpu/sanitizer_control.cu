// Kernels with one mistake each, which NVIDIA's checkers have to find: where they do not, they looked at nothing.
//   sanitizer_control memcheck    writes past the end of a buffer
//   sanitizer_control racecheck   reads shared memory that another thread writes, without a barrier
//   sanitizer_control synccheck   a barrier that half of the threads of a block do not reach
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

namespace {

constexpr int kThreads = 64;

__global__ void write_past_the_end(int* values) { values[threadIdx.x + 1] = 1; }

__global__ void read_without_a_barrier(int* values) {
  __shared__ int shared[kThreads];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  values[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}

__global__ void half_of_the_threads_wait(int* values) {
  if (threadIdx.x % 2 == 0) __syncthreads();
  values[threadIdx.x] = 1;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const what = argc > 1 ? argv[1] : "";
  int* values = nullptr;
  cudaError_t error = cudaMalloc(&values, kThreads * sizeof(int));
  if (error != cudaSuccess) {
    std::fprintf(stderr, "sanitizer_control: %s\n", cudaGetErrorString(error));
    return 6;
  }
  if (std::strcmp(what, "memcheck") == 0) write_past_the_end<<<1, kThreads>>>(values);
  if (std::strcmp(what, "racecheck") == 0) read_without_a_barrier<<<1, kThreads>>>(values);
  if (std::strcmp(what, "synccheck") == 0) half_of_the_threads_wait<<<1, kThreads>>>(values);
  error = cudaDeviceSynchronize();
  std::printf("sanitizer_control %s: %s\n", what, cudaGetErrorString(error));
  return 0;
}
