// thin^T big in bf16 with Intel AMX, summed in fp32. On other CPUs, call nothing but has_amx(). No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "launch/rows.h"

namespace lora_train::kernels {

/// True if CPU and Linux kernel support AMX and no test has disabled it.
bool has_amx();
void allow_amx(bool allowed);  ///< for tests of the code without AMX

/// Columns per step; column ranges begin at multiples of it.
constexpr std::int64_t kAmxColumns = 32;

/// The thin operand in tiles of 16 ranks and 32 tokens, [token blocks, rank tiles, 16, 32], zeros past N and R.
struct AmxThin {
  std::vector<std::uint16_t> tiles;
  std::int64_t num_blocks, num_rank_tiles;
};
AmxThin pack_amx_thin(Rows<const Bf16> thin, std::int64_t N, std::int64_t R);

/// sums [R, last - first] = thin^T big for columns [first, last) of big. The order of additions depends on N alone.
void multiply_amx(Rows<const Bf16> big, const AmxThin& thin, std::int64_t N, std::int64_t R, std::int64_t first,
                  std::int64_t last, float* sums);

}  // namespace lora_train::kernels
