#include <algorithm>

#include "lora_parts.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lora_train::kernels {
namespace {

bool is_allowed = true;

}  // namespace

void allow_amx(bool allowed) { is_allowed = allowed; }

#if defined(__x86_64__) && defined(__linux__)
namespace {

constexpr std::int64_t kTile = 16;    // ranks and columns per tile
constexpr std::int64_t kTokens = 32;  // per tile
constexpr std::int64_t kTileElements = kTile * kTokens;
constexpr std::int64_t kBlockRows = 64;    // rows of big per block; the next ones are prefetched
constexpr std::int64_t kMaxRankTiles = 3;  // with sums in tiles at once: 6 of the 8

bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0 || !__builtin_cpu_supports("avx512bw")) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl of Linux: tiles must be requested
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// The intrinsics hide their memory accesses from the compiler.
inline void memory_is_used() { asm volatile("" ::: "memory"); }

#define LORA_TRAIN_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};
};

LORA_TRAIN_AMX void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.num_rows[i] = kTile;
  }
  memory_is_used();
  _tile_loadconfig(&config);
}

/// Rows [0, num_rows) of 32 columns as two tiles of token pairs: [2, 16 pairs, 16 columns, 2 tokens]. The first has
/// columns 0-3, 8-11, 16-19 and 24-27, the second has the others.
LORA_TRAIN_AMX inline void pack_pairs(Rows<const Bf16> big, std::int64_t n, std::int64_t num_rows, std::int64_t column,
                                      __mmask32 mask, std::uint16_t* tiles) {
  for (std::int64_t pair = 0; pair < kTokens / 2; ++pair) {
    const auto row = [&](std::int64_t i) LORA_TRAIN_AMX {
      return i < num_rows ? _mm512_maskz_loadu_epi16(mask, big[n + i] + column) : _mm512_setzero_si512();
    };
    const __m512i even = row(2 * pair), odd = row(2 * pair + 1);
    __builtin_prefetch(big[n + 2 * pair] + column + kAmxColumns);
    __builtin_prefetch(big[n + 2 * pair + 1] + column + kAmxColumns);
    _mm512_store_si512(tiles + pair * kTokens, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(tiles + kTileElements + pair * kTokens, _mm512_unpackhi_epi16(even, odd));
  }
}

/// sums [kRankTiles, 2, 16, 16] += tiles of thin [blocks, all rank tiles] times the pairs of 32 columns.
template <int kRankTiles>
LORA_TRAIN_AMX void add_products(const std::uint16_t* thin, std::int64_t thin_stride, const std::uint16_t* pairs,
                                 std::int64_t num_blocks, float* sums) {
  constexpr long kRowBytes = 64;
  _tile_loadd(0, sums, kRowBytes);
  _tile_loadd(1, sums + 256, kRowBytes);
  if constexpr (kRankTiles > 1) {
    _tile_loadd(2, sums + 512, kRowBytes);
    _tile_loadd(3, sums + 768, kRowBytes);
  }
  if constexpr (kRankTiles > 2) {
    _tile_loadd(4, sums + 1024, kRowBytes);
    _tile_loadd(5, sums + 1280, kRowBytes);
  }
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::uint16_t* const a = thin + block * thin_stride;
    const std::uint16_t* const b = pairs + block * 2 * kTileElements;
    _tile_loadd(6, a, kRowBytes);
    _tile_loadd(7, b, kRowBytes);
    _tile_dpbf16ps(0, 6, 7);
    if constexpr (kRankTiles > 1) {
      _tile_loadd(6, a + kTileElements, kRowBytes);
      _tile_dpbf16ps(2, 6, 7);
    }
    if constexpr (kRankTiles > 2) {
      _tile_loadd(6, a + 2 * kTileElements, kRowBytes);
      _tile_dpbf16ps(4, 6, 7);
    }
    _tile_loadd(7, b + kTileElements, kRowBytes);  // tile 6 still has the last ranks
    if constexpr (kRankTiles > 2) {
      _tile_dpbf16ps(5, 6, 7);
      _tile_loadd(6, a + kTileElements, kRowBytes);
    }
    if constexpr (kRankTiles > 1) {
      _tile_dpbf16ps(3, 6, 7);
      _tile_loadd(6, a, kRowBytes);
    }
    _tile_dpbf16ps(1, 6, 7);
  }
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + 256, kRowBytes);
  if constexpr (kRankTiles > 1) {
    _tile_stored(2, sums + 512, kRowBytes);
    _tile_stored(3, sums + 768, kRowBytes);
  }
  if constexpr (kRankTiles > 2) {
    _tile_stored(4, sums + 1024, kRowBytes);
    _tile_stored(5, sums + 1280, kRowBytes);
  }
}

/// Converts [steps, rank tiles, 2, 16, 16], with columns as sorted by pack_pairs, to [R, columns].
void unpack_sums(const std::vector<float>& tiles, std::int64_t num_rank_tiles, std::int64_t R, std::int64_t columns,
                 float* sums) {
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t c = 0; c < columns; c += 4) {
      const std::int64_t step = c / kAmxColumns, within = c % kAmxColumns;
      const std::int64_t tile = (step * num_rank_tiles + r / kTile) * 2 + within / 4 % 2;
      const float* const from = tiles.data() + (tile * kTile + r % kTile) * kTile + within / 8 * 4;
      std::copy_n(from, std::min<std::int64_t>(4, columns - c), sums + r * columns + c);
    }
  }
}

}  // namespace

bool has_amx() {
  static const bool is_there = may_use_amx();
  return is_there && is_allowed;
}

LORA_TRAIN_AMX AmxThin pack_amx_thin(Rows<const Bf16> thin, std::int64_t N, std::int64_t R) {
  AmxThin packed;
  packed.num_blocks = (N + kTokens - 1) / kTokens;
  packed.num_rank_tiles = (R + kTile - 1) / kTile;
  packed.tiles.resize(static_cast<std::size_t>(packed.num_blocks * packed.num_rank_tiles * kTileElements));
  const __m512i rows = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
  std::uint16_t* tile = packed.tiles.data();
  for (std::int64_t n = 0; n < N; n += kTokens) {
    for (std::int64_t r = 0; r < R; r += kTile, tile += kTileElements) {
      const auto mask = static_cast<__mmask16>(R - r >= kTile ? 0xFFFFu : (1u << (R - r)) - 1);
      const auto ranks_of = [&](std::int64_t token) LORA_TRAIN_AMX {
        return token < N ? _mm512_maskz_cvtepu16_epi32(mask, _mm256_maskz_loadu_epi16(mask, thin[token] + r))
                         : _mm512_setzero_si512();
      };
      for (std::int64_t pair = 0; pair < kTokens / 2; ++pair) {
        const __m512i odd = _mm512_maskz_slli_epi32(mask, ranks_of(n + 2 * pair + 1), 16);
        _mm512_i32scatter_epi32(tile + 2 * pair, rows, _mm512_or_si512(ranks_of(n + 2 * pair), odd), 4);
      }
    }
  }
  return packed;
}

LORA_TRAIN_AMX void multiply_amx(Rows<const Bf16> big, const AmxThin& thin, std::int64_t N, std::int64_t R,
                                 std::int64_t first, std::int64_t last, float* sums) {
  const std::int64_t num_steps = (last - first + kAmxColumns - 1) / kAmxColumns, num_tiles = thin.num_rank_tiles;
  std::vector<float> tiles(static_cast<std::size_t>(num_steps * num_tiles * 2 * kTile * kTile));
  alignas(64) std::uint16_t pairs[kBlockRows / kTokens * 2 * kTileElements];
  configure_tiles();
  for (std::int64_t n = 0; n < N; n += kBlockRows) {
    const std::int64_t num_blocks = (std::min(kBlockRows, N - n) + kTokens - 1) / kTokens;
    for (std::int64_t step = 0; step < num_steps; ++step) {
      const std::int64_t column = first + step * kAmxColumns, width = std::min(kAmxColumns, last - column);
      const auto mask = static_cast<__mmask32>(width == kAmxColumns ? ~0u : (1u << width) - 1);
      for (std::int64_t block = 0; block < num_blocks; ++block) {
        const std::int64_t begin = n + block * kTokens;
        pack_pairs(big, begin, std::min(kTokens, N - begin), column, mask, pairs + block * 2 * kTileElements);
      }
      memory_is_used();
      for (std::int64_t tile = 0; tile < num_tiles; tile += kMaxRankTiles) {
        const std::uint16_t* const a = thin.tiles.data() + (n / kTokens * num_tiles + tile) * kTileElements;
        float* const to = tiles.data() + (step * num_tiles + tile) * 2 * kTile * kTile;
        const std::int64_t stride = num_tiles * kTileElements, count = std::min(kMaxRankTiles, num_tiles - tile);
        count == 1   ? add_products<1>(a, stride, pairs, num_blocks, to)
        : count == 2 ? add_products<2>(a, stride, pairs, num_blocks, to)
                     : add_products<3>(a, stride, pairs, num_blocks, to);
      }
      memory_is_used();
    }
  }
  _tile_release();
  unpack_sums(tiles, num_tiles, R, last - first, sums);
}

#else

bool has_amx() { return false; }
AmxThin pack_amx_thin(Rows<const Bf16>, std::int64_t, std::int64_t) { return {}; }
void multiply_amx(Rows<const Bf16>, const AmxThin&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*) {}

#endif

}  // namespace lora_train::kernels
