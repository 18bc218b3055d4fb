// How the elements of a quantised weight are coded. No torch.
#pragma once

namespace lora_train::kernels {

///   kNf4, kFp4  4 bits, w = map[code] * scale of the block of `block_size` elements of the flat row-major matrix. Blocks cross
///               rows; the last may be short.
///   kInt8       w = code * fl(scale of the row * fl(1 / 127)). The scale (bitsandbytes' SCB) is the largest absolute value.
///   kFp8        w = value of the code * scale of the tile of block_rows x block_columns. Tiles at the edges may be smaller.
/// Every product is rounded once to fp32; the result is then rounded once to the dtype that it is written in.
enum class WeightCode { kNf4, kFp4, kInt8, kFp8 };

constexpr bool has_4_bits(WeightCode code) { return code == WeightCode::kNf4 || code == WeightCode::kFp4; }

}  // namespace lora_train::kernels
