// All matrices of a layer in one launch: a block takes 1024 packs of 8 elements of one matrix, selected by a table in
// device memory, so that the 8 codes of neighbouring threads and the resulting bf16 values (16 bytes) are contiguous in
// memory.
// Memory traffic per element in bf16, 2 bytes of them written: nf4 and fp4 0.5 + 4/64 read, nested 0.5 + 1/64 +
// 4/16384; int8 1 + 4/D; fp8 1 + 4/16384. Plus 164 bytes of the tables per block of 8192 elements, which stay in the
// cache. The same launch writes adapter columns and linears that their folder leaves plain: 4 or 2 bytes read, and so
// few of them that one pack at a time is enough, which leaves registers for the codes.
#include "launch/launch.h"
#include "quantized_weight_parts.h"

namespace lora_train::kernels {
namespace {

constexpr int kLogOfPack = 3;
static_assert(1 << kLogOfPack == kDequantPack);

/// A pointer from a table, which the compiler does not recognise as global memory.
template <class T>
__device__ __forceinline__ const T* global(const void* p) {
  const T* const pointer = static_cast<const T*>(p);
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

// Readers of the codes: a pack of 8 as one word, the scale of a block (4 bits) or at a row and column, elements.

template <bool kIsNested>
struct FourBits {
  static constexpr bool kHasBlocks = true;  // in the flat matrix
  using Word = std::uint32_t;
  static __device__ __forceinline__ float scale(const WeightView& weight, std::uint32_t block, std::uint32_t,
                                                std::uint32_t) {
    if constexpr (!kIsNested) return global<float>(weight.scales)[block];
    const float code = global<float>(weight.nested_map)[global<std::uint8_t>(weight.scales)[block]];
    return __fadd_rn(__fmul_rn(code, global<float>(weight.nested_scales)[block >> weight.nested_shift]),
                     weight.nested_offset);
  }
  static __device__ __forceinline__ float value(Word word, int k, const float* map) {
    return map[word >> (8 * (k / 2) + (k % 2 == 0 ? 4 : 0)) & 15u];
  }
  static __device__ __forceinline__ float element(const WeightView& weight, std::int64_t i, const float* map) {
    const Word both = global<std::uint8_t>(weight.codes)[i / 2];
    return map[i % 2 == 0 ? both >> 4 : both & 15u];
  }
};

struct TwoWords {
  alignas(8) std::uint32_t words[2];
};

struct Int8 {
  static constexpr bool kHasBlocks = false;
  using Word = TwoWords;
  static __device__ __forceinline__ float scale(const WeightView& weight, std::uint32_t, std::uint32_t row,
                                                std::uint32_t) {
    return __fmul_rn(global<float>(weight.scales)[row], kInt8Step);
  }
  static __device__ __forceinline__ float value(const Word& word, int k, const float*) {
    // 2^23 + 128 + code, from its bits: exact, and faster than a conversion.
    return float_of_bits(__byte_perm(word.words[k / 4] ^ 0x80808080u, 0x4B000000u, 0x7440u | unsigned(k % 4))) -
           8388736.0F;
  }
  static __device__ __forceinline__ float element(const WeightView& weight, std::int64_t i, const float*) {
    return static_cast<float>(global<std::int8_t>(weight.codes)[i]);
  }
};

struct Fp8 {
  static constexpr bool kHasBlocks = false;
  using Word = TwoWords;
  static __device__ __forceinline__ float scale(const WeightView& weight, std::uint32_t, std::uint32_t row,
                                                std::uint32_t column) {
    const std::int64_t tile =
        std::int64_t{row >> weight.block_shift} * weight.tiles_per_row + (column >> weight.nested_shift);
    return global<float>(weight.scales)[tile];
  }
  static __device__ __forceinline__ float value(const Word& word, int k, const float*) {
    return e4m3_to_float(__byte_perm(word.words[k / 4], 0u, unsigned(k % 4) << 12 | 0x444u));
  }
  static __device__ __forceinline__ float element(const WeightView& weight, std::int64_t i, const float*) {
    return e4m3_to_float(std::uint32_t{global<std::uint8_t>(weight.codes)[i]} << 24);
  }
};

template <class Code, class To>
__device__ __forceinline__ void write_packs(const DequantSegment& segment, std::int64_t block, const float* map) {
  const WeightView& weight = segment.weight;
  const auto* const codes = global<typename Code::Word>(weight.codes);
  const Rows<To> to{static_cast<To*>(segment.to.data), segment.to.stride};
  const std::uint32_t first = static_cast<std::uint32_t>(block) * (kDequantThreads * kDequantPacks) + threadIdx.x;
  typename Code::Word words[kDequantPacks];
  float scales[kDequantPacks];
  To* targets[kDequantPacks];
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kDequantPacks; ++k) {  // without branches, so that all loads are in flight at once
    const std::uint32_t wanted = first + static_cast<unsigned>(k) * kDequantThreads;
    const std::uint32_t pack = wanted < segment.num_packs ? wanted : segment.num_packs - 1;
    const auto row = static_cast<std::uint32_t>(std::uint64_t{pack} * segment.multiplier >> segment.shift);
    const std::uint32_t column = (pack - row * segment.packs_per_row) * kDequantPack;
    words[k] = codes[pack];
    const std::uint32_t block_of_pack = Code::kHasBlocks ? pack >> (weight.block_shift - kLogOfPack) : 0;
    scales[k] = Code::scale(weight, block_of_pack, row, column);
    targets[k] = to[row] + column;
  }
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kDequantPacks; ++k) {
    if (first + static_cast<unsigned>(k) * kDequantThreads >= segment.num_packs) return;
    float values[kDequantPack];
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kDequantPack; ++i) values[i] = __fmul_rn(Code::value(words[k], i, map), scales[k]);
    store_floats<kDequantPack>(targets[k], values);
  }
}

/// Odd widths and misaligned rows.
template <class Code, class To>
__device__ __forceinline__ void write_elements(const DequantSegment& segment, std::int64_t block, const float* map) {
  const WeightView& weight = segment.weight;
  const Rows<To> to{static_cast<To*>(segment.to.data), segment.to.stride};
  const std::int64_t count = weight.num_rows * weight.width;
  for (int k = 0; k < kDequantPacks; ++k) {
    const std::int64_t i = (block * kDequantPacks + k) * kDequantThreads + threadIdx.x;
    if (i >= count) return;
    const std::int64_t row = i / weight.width, column = i - row * weight.width;
    const float scale = Code::scale(weight, static_cast<std::uint32_t>(i >> weight.block_shift),
                                    static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column));
    store(to[row] + column, __fmul_rn(Code::element(weight, i, map), scale));
  }
}

template <class From, class To>
__device__ __forceinline__ void write_plain(const DequantSegment& segment, std::int64_t block) {
  const Rows<const From> from{static_cast<const From*>(segment.plain.data), segment.plain.stride};
  const Rows<To> to{static_cast<To*>(segment.to.data), segment.to.stride};
  const std::int64_t width = segment.weight.width;
  const std::int64_t count = segment.num_packs > 0 ? segment.num_packs : segment.weight.num_rows * width;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (int k = 0; k < kDequantPacks; ++k) {
    const std::int64_t i = (block * kDequantPacks + k) * kDequantThreads + threadIdx.x;
    if (i >= count) return;
    if (segment.num_packs > 0) {
      const auto row = static_cast<std::int64_t>(static_cast<std::uint64_t>(i) * segment.multiplier >> segment.shift);
      const std::int64_t column = (i - row * segment.packs_per_row) * kDequantPack;
      float values[kDequantPack];
      load_floats<kDequantPack>(from[row] + column, values);
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kDequantPack; ++j) values[j] = __fmul_rn(values[j], segment.factor);
      store_floats<kDequantPack>(to[row] + column, values);
    } else {
      const std::int64_t row = i / width, column = i - row * width;
      store(to[row] + column, __fmul_rn(load(from[row] + column), segment.factor));
    }
  }
}

template <class Code, class To>
__device__ __forceinline__ void write_block(const DequantSegment& segment, std::int64_t block, const float* map) {
  segment.num_packs > 0 ? write_packs<Code, To>(segment, block, map) : write_elements<Code, To>(segment, block, map);
}

template <class To>
__global__ void __launch_bounds__(kDequantThreads)
    dequantize_kernel(const DequantSegment* segments, const std::int32_t* segment_of_block) {
  // In shared memory, not in registers of every thread.
  constexpr unsigned kWords = sizeof(DequantSegment) / sizeof(std::uint32_t);
  static_assert(sizeof(DequantSegment) % sizeof(std::uint32_t) == 0 && kWords <= kDequantThreads);
  LORA_TRAIN_SHARED(DequantSegment, shared_segment, 1);
  LORA_TRAIN_SHARED(float, map, 16);
  const DequantSegment& segment = *shared_segment;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(segments + segment_of_block[blockIdx.x]);
  if (threadIdx.x < kWords) reinterpret_cast<std::uint32_t*>(shared_segment)[threadIdx.x] = words[threadIdx.x];
  __syncthreads();
  const bool has_map = segment.source == SegmentSource::kCodes && segment.weight.code == WeightCode::k4Bit;
  if (has_map && threadIdx.x < 16) map[threadIdx.x] = global<float>(segment.weight.map)[threadIdx.x];
  __syncthreads();
  const std::int64_t block = blockIdx.x - segment.first_block;
  if (segment.source == SegmentSource::kFloat) {
    write_plain<float, To>(segment, block);
  } else if (segment.source == SegmentSource::kBf16) {
    write_plain<Bf16, To>(segment, block);
  } else if (has_map && segment.weight.nested_scales != nullptr) {
    write_block<FourBits<true>, To>(segment, block, map);
  } else if (has_map) {
    write_block<FourBits<false>, To>(segment, block, map);
  } else if (segment.weight.code == WeightCode::kInt8) {
    write_block<Int8, To>(segment, block, map);
  } else {
    write_block<Fp8, To>(segment, block, map);
  }
}

}  // namespace

template <class To>
void dequantize_cuda(const DequantSegment* segments, const std::int32_t* segment_of_block, std::int64_t num_blocks,
                     Stream stream) {
  launch("dequantize", dequantize_kernel<To>, {num_blocks}, kDequantThreads, stream, segments, segment_of_block);
}

LORA_TRAIN_INSTANTIATE(dequantize_cuda);

}  // namespace lora_train::kernels
