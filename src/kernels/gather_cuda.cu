// A block writes one row: a copy of another, or zeros. Which one a scattered row comes from, a search in the ascending
// list tells; its first steps are the same for all blocks and stay in the cache. Elements moved: 1 read, 1 written; zero
// rows 1 written.
#include "gather_cuda.h"

#include "launch.h"
#include "pack.h"

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
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t D) {
  copy_row<T, kSize>(from[rows[blockIdx.x]], to[blockIdx.x], D);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    scatter_rows_kernel(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                        std::int64_t D) {
  const std::int64_t n = blockIdx.x;
  std::int64_t begin = 0, end = num_picked;  // the first picked row that is not below n
  while (begin < end) {
    const std::int64_t middle = (begin + end) / 2;
    if (rows[middle] < n) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  if (begin < num_picked && rows[begin] == n) {
    copy_row<T, kSize>(from[begin], to[n], D);
    return;
  }
  Pack<T, kSize> zeros;
  for (int i = 0; i < kSize; ++i) store(&zeros.values[i], 0.0F);
  const std::int64_t step = std::int64_t{blockDim.x} * kSize;
  for (std::int64_t d = std::int64_t{threadIdx.x} * kSize; d < D; d += step) store_pack<kSize>(to[n] + d, zeros);
}

/// Threads for a row of `packs`, so that all of them take the same number of packs, nearly.
unsigned row_threads(std::int64_t packs) {
  const std::int64_t turns = blocks_for(packs, kThreads);
  return threads_for(turns == 0 ? 0 : blocks_for(packs, turns), kThreads);
}

}  // namespace

template <class T>
void gather_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked, std::int64_t D,
                      Stream stream) {
  constexpr int kPack = kFullPack<T>;
  const auto run = [&](auto kernel, std::int64_t packs) {
    launch("gather_rows", kernel, {num_picked}, row_threads(packs), stream, from, rows, to, D);
  };
  const bool is_packed = fits_packs(from, D) && fits_packs(to, D);
  is_packed ? run(gather_rows_kernel<T, kPack>, D / kPack) : run(gather_rows_kernel<T, 1>, D);
}

template <class T>
void scatter_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                       std::int64_t num_rows, std::int64_t D, Stream stream) {
  constexpr int kPack = kFullPack<T>;
  const auto run = [&](auto kernel, std::int64_t packs) {
    launch("scatter_rows", kernel, {num_rows}, row_threads(packs), stream, from, rows, to, num_picked, D);
  };
  const bool is_packed = fits_packs(from, D) && fits_packs(to, D);
  is_packed ? run(scatter_rows_kernel<T, kPack>, D / kPack) : run(scatter_rows_kernel<T, 1>, D);
}

#define LORA_TRAIN_INSTANTIATE(T)                                                                                \
  template void gather_rows_cuda(Rows<const T>, const std::int64_t*, Rows<T>, std::int64_t, std::int64_t, Stream); \
  template void scatter_rows_cuda(Rows<const T>, const std::int64_t*, Rows<T>, std::int64_t, std::int64_t,       \
                                  std::int64_t, Stream)
LORA_TRAIN_INSTANTIATE(float);
LORA_TRAIN_INSTANTIATE(Bf16);

}  // namespace lora_train::kernels
