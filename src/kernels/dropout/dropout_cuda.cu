// One block per token; a thread takes 16 bytes, which are one Philox counter in fp32 or two in bf16. Memory traffic:
// every element is read once and written once.
#include "dropout_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 512;
constexpr int kDrawn = 4;  // features of one counter

/// Features [d, d + kSize) of a token, d a multiple of kSize.
template <int kSize, class T>
__device__ __forceinline__ void drop(Pack<T, kSize>& pack, std::uint32_t document, std::uint32_t position,
                                     std::int64_t d, PhiloxKey key, std::uint32_t threshold, float factor) {
  LORA_TRAIN_UNROLL
  for (int first = 0; first < kSize; first += kDrawn) {
    const auto words = philox4x32({document, position, static_cast<std::uint32_t>((d + first) / kDrawn), 0}, key);
    LORA_TRAIN_UNROLL
    for (int j = 0; j < kDrawn; ++j) {
      T& value = pack.values[first + j];
      store(&value, (words[static_cast<unsigned>(j)] >> 8) >= threshold ? to_float(value) * factor : 0.0F);
    }
  }
}

template <class T, bool kIsPacked>
__global__ void __launch_bounds__(kThreads)
    dropout_forward_kernel(Rows<const T> x, const std::int32_t* token_document, const std::int32_t* token_position,
                           const PhiloxKey* key, std::uint32_t threshold, float factor, Rows<T> y, std::int64_t D) {
  constexpr int kSize = kFullPack<T>;
  const std::int64_t n = blockIdx.x;
  const T* from = x[n];
  T* to = y[n];
  const auto document = static_cast<std::uint32_t>(token_document[n]),
             position = static_cast<std::uint32_t>(token_position[n]);
  for (std::int64_t d = std::int64_t{threadIdx.x} * kSize; d < D; d += std::int64_t{blockDim.x} * kSize) {
    Pack<T, kSize> pack{};
    const int width = kIsPacked || d + kSize <= D ? kSize : static_cast<int>(D - d);
    if constexpr (kIsPacked) {
      pack = load_pack<kSize>(from + d);
    } else {
      for (int i = 0; i < kSize; ++i) {
        if (i < width) pack.values[i] = from[d + i];
      }
    }
    drop(pack, document, position, d, *key, threshold, factor);
    if constexpr (kIsPacked) {
      store_pack<kSize>(to + d, pack);
    } else {
      for (int i = 0; i < kSize; ++i) {
        if (i < width) to[d + i] = pack.values[i];
      }
    }
  }
}

}  // namespace

template <class T>
void dropout_forward_cuda(Rows<const T> x, const std::int32_t* token_document, const std::int32_t* token_position,
                          const PhiloxKey* key, std::uint32_t threshold, float factor, Rows<T> y,
                          std::int64_t num_tokens, std::int64_t D, Stream stream) {
  const auto kernel =
      fits_packs(x, D) && fits_packs(y, D) ? dropout_forward_kernel<T, true> : dropout_forward_kernel<T, false>;
  launch("dropout_forward", kernel, {num_tokens}, threads_for(blocks_for(D, kFullPack<T>), kThreads), stream, x,
         token_document, token_position, key, threshold, factor, y, D);
}

LORA_TRAIN_INSTANTIATE(dropout_forward_cuda);

}  // namespace lora_train::kernels
