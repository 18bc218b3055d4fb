// One block per row. Elements moved: 1 read, 1 written.
#include "gather_kernels.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;

template <class T, int kSize>
__device__ __forceinline__ void copy_row(const T* from, T* to, std::int64_t D) {
  const std::int64_t step = std::int64_t{blockDim.x} * kSize;
  for (std::int64_t d = std::int64_t{threadIdx.x} * kSize; d < D; d += step) {
    store_pack<kSize>(to + d, load_pack<kSize>(from + d));
  }
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(Rows<const T> from, const std::int64_t* rows, Rows<T> to,
                                                               std::int64_t num_rows, std::int64_t D) {
  T* const target = to[blockIdx.x];
  if (rows[blockIdx.x] < num_rows) {
    copy_row<T, kSize>(from[rows[blockIdx.x]], target, D);
    return;
  }
  Pack<T, kSize> zeros;
  for (int i = 0; i < kSize; ++i) store(&zeros.values[i], 0.0F);
  const std::int64_t step = std::int64_t{blockDim.x} * kSize;
  for (std::int64_t d = std::int64_t{threadIdx.x} * kSize; d < D; d += step) store_pack<kSize>(target + d, zeros);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) scatter_rows_kernel(Rows<const T> from, const std::int64_t* rows,
                                                                Rows<T> to, std::int64_t num_rows, std::int64_t D) {
  if (rows[blockIdx.x] < num_rows) copy_row<T, kSize>(from[blockIdx.x], to[rows[blockIdx.x]], D);
}

constexpr unsigned kListThreads = 1024;

__global__ void __launch_bounds__(kListThreads)
    take_next_kernel(const std::int64_t* rows, const std::int32_t* targets, const float* weights, std::int64_t* next,
                     std::int64_t* picked_rows, std::int32_t* picked_targets, float* picked_weights,
                     std::int64_t count) {
  const std::int64_t first = *next;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    picked_rows[i] = rows[first + i];
    picked_targets[i] = targets[first + i];
    if (weights != nullptr) picked_weights[i] = weights[first + i];
  }
  __syncthreads();  // all threads have read the start
  if (threadIdx.x == 0) *next = first + count;
}

/// Runs a kernel over the picked rows: packed_kernel if rows of both sides allow packs, else the element kernel.
template <class T, class Kernel>
void launch_rows(const char* name, Kernel packed_kernel, Kernel kernel, Rows<const T> from, const std::int64_t* rows,
                 Rows<T> to, std::int64_t num_picked, std::int64_t num_rows, std::int64_t D, Stream stream) {
  const bool is_packed = fits_packs(from, D) && fits_packs(to, D);
  launch(name, is_packed ? packed_kernel : kernel, {num_picked},
         even_threads_for(is_packed ? D / kFullPack<T> : D, kThreads), stream, from, rows, to, num_rows, D);
}

}  // namespace

template <class T>
void gather_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                      std::int64_t num_rows, std::int64_t D, Stream stream) {
  launch_rows<T>("gather_rows", gather_rows_kernel<T, kFullPack<T>>, gather_rows_kernel<T, 1>, from, rows, to,
                 num_picked, num_rows, D, stream);
}

template <class T>
void scatter_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                       std::int64_t num_rows, std::int64_t D, Stream stream) {
  launch_rows<T>("scatter_rows", scatter_rows_kernel<T, kFullPack<T>>, scatter_rows_kernel<T, 1>, from, rows, to,
                 num_picked, num_rows, D, stream);
}

void take_next_cuda(const std::int64_t* rows, const std::int32_t* targets, const float* weights, std::int64_t* next,
                    std::int64_t* picked_rows, std::int32_t* picked_targets, float* picked_weights, std::int64_t count,
                    Stream stream) {
  launch("take_next", take_next_kernel, {1}, threads_for(count, kListThreads), stream, rows, targets, weights, next,
         picked_rows, picked_targets, picked_weights, count);
}

LORA_TRAIN_INSTANTIATE(gather_rows_cuda);
LORA_TRAIN_INSTANTIATE(scatter_rows_cuda);

}  // namespace lora_train::kernels
