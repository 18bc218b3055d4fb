// A row gets as many neighbouring threads as it has packs (8 elements when one side is bf16), so that narrow adapter columns
// and flat buffers both fill their blocks. Elements moved: 1 read, 1 written.
#include "cast_cuda.h"
#include "launch/launch.h"
#include "launch/pack.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kPacks = 2;                 // in flight per thread
constexpr std::int64_t kMaxParts = 1024;  // of a row: they fill any GPU, and then take turns

template <class From, class To, int kSize>
__global__ void __launch_bounds__(kThreads)
    scaled_copy_kernel(Rows<const From> from, float scale, Rows<To> to, std::int64_t num_rows, std::int64_t width,
                       unsigned lanes) {
  const unsigned lane = threadIdx.x % lanes;
  const std::int64_t n = std::int64_t{blockIdx.x} * (blockDim.x / lanes) + threadIdx.x / lanes;
  if (n >= num_rows) return;
  const std::int64_t pack_step = std::int64_t{lanes} * kSize, step = pack_step * kPacks * gridDim.y;
  for (std::int64_t d = blockIdx.y * pack_step * kPacks + std::int64_t{lane} * kSize; d < width; d += step) {
    float values[kPacks][kSize];
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      if (d + k * pack_step < width) load_floats<kSize>(from[n] + d + k * pack_step, values[k]);
    }
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      if (d + k * pack_step >= width) continue;
      for (int i = 0; i < kSize; ++i) values[k][i] *= scale;
      store_floats<kSize>(to[n] + d + k * pack_step, values[k]);
    }
  }
}

}  // namespace

template <class From, class To>
void scaled_copy_cuda(Rows<const From> from, float scale, Rows<To> to, std::int64_t num_rows, std::int64_t width,
                      Stream stream) {
  if (width == 0) return;
  constexpr int kPack = kFullPack < From >> kFullPack<To> ? kFullPack<From> : kFullPack<To>;
  const auto run = [&](auto kernel, std::int64_t packs) {
    unsigned lanes = 1;
    while (lanes < kThreads && lanes < packs) lanes *= 2;
    const std::int64_t parts = blocks_for(packs, std::int64_t{lanes} * kPacks);
    launch("scaled_copy", kernel, {blocks_for(num_rows, kThreads / lanes), parts < kMaxParts ? parts : kMaxParts},
           kThreads, stream, from, scale, to, num_rows, width, lanes);
  };
  const bool is_packed = fits_packs(from, width) && fits_packs(to, width);
  is_packed ? run(scaled_copy_kernel<From, To, kPack>, width / kPack) : run(scaled_copy_kernel<From, To, 1>, width);
}

template decltype(scaled_copy_cuda<float, float>) scaled_copy_cuda<float, float>;
template decltype(scaled_copy_cuda<float, Bf16>) scaled_copy_cuda<float, Bf16>;
template decltype(scaled_copy_cuda<Bf16, float>) scaled_copy_cuda<Bf16, float>;
template decltype(scaled_copy_cuda<Bf16, Bf16>) scaled_copy_cuda<Bf16, Bf16>;

}  // namespace lora_train::kernels
