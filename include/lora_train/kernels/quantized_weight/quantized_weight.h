// Quantised weights: 4-bit (bitsandbytes' nf4 and fp4), int8 with a scale per row, and fp8 e4m3 with a scale per tile.
// Results match bitsandbytes' CUDA kernels; for fp8, DeepSeek's and Qwen's folders. O rows (output features), D columns
// (input features). These kernels follow the kernel setting `cast`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lora_train/kernels/dispatch/segment_table.h"
#include "lora_train/kernels/quantized_weight/codes.h"

namespace lora_train::kernels {

/// A matrix [O, D]. All tensors are contiguous and on one device.
struct QuantizedWeight {
  WeightCode code = WeightCode::k4Bit;
  std::int64_t out_features = 0, in_features = 0;
  at::Tensor codes;  ///< 4 bits: uint8 [ceil(O D / 2)], the first element of a pair in the high nibble; int8 [O, D]; or
                     ///< float8_e4m3fn [O, D]
  at::Tensor scales;  ///< fp32. 4 bits: [ceil(O D / block_size)], or their uint8 codes if nested. int8: [O].
      ///< fp8: [ceil(O / block_rows), ceil(D / block_columns)]; ue8m0 or bf16 scales of a folder, exactly converted to
      ///< fp32

  // 4 bits
  at::Tensor map;                ///< fp32 [16]: the value of each code
  std::int64_t block_size = 64;  ///< a power of 2 from 16 to 4096; blocks divide the flat matrix and cross rows
  /// Nested ("double") quantisation of the scales, if defined:
  /// scale[i] = fl(fl(nested_map[scales[i]] * nested_scales[i / nested_block_size]) + nested_offset).
  at::Tensor nested_scales;              ///< fp32 [ceil(number of scales / nested_block_size)]
  at::Tensor nested_map;                 ///< fp32 [256]
  std::int64_t nested_block_size = 256;  ///< a power of 2
  float nested_offset = 0;

  // fp8. One scale per tensor: a tile of O x D; per row: 1 x D. Each a power of 2, or at least O (D).
  std::int64_t block_rows = 128, block_columns = 128;

  bool is_nested() const { return nested_scales.defined(); }
};

/// Bytes of all its tensors, on any device, including meta.
std::int64_t bytes_of(const QuantizedWeight& weight);

/// Throws ShapeError, naming the tensor, unless dtypes and sizes fit each other.
void check_quantized_weight(const QuantizedWeight& weight);

/// The maps of bitsandbytes, fp32 on the CPU, ascending. dynamic_map [256] is for 8-bit codes, in [-1, 1] or [0, 1].
at::Tensor nf4_map();
at::Tensor dynamic_map(bool is_signed);

/// A batch of dequantisations that can run repeatedly. The tensors stay where they are in memory.
class Dequantizations {
 public:
  /// out [O, D] fp32 or bf16 (fp16 and fp64 by the reference); rows may be strided. It must not overlap the weight.
  /// Throws ShapeError when the weight or out has the wrong shape.
  void add(const QuantizedWeight& weight, const at::Tensor& out);
  /// Also to = from * scale, as in ScaledCopies: for adapter columns, and linears that their folder leaves plain. from
  /// and to [R, C], rows may be strided.
  void add(const at::Tensor& from, double scale, const at::Tensor& to);
  /// On CUDA, takes one launch if all outputs have one dtype, fp32 or bf16, and plain inputs are fp32 or bf16; the
  /// first run uploads a table, so it cannot be captured. Results are the same bits on every device.
  void run();

 private:
  struct Item {
    QuantizedWeight weight;
    at::Tensor out;
    at::Tensor plain = {};  ///< in place of a weight
    double scale = 1;
  };
  void make_table();

  std::vector<Item> items_;
  SegmentTable table_;  ///< holds DequantSegments
};

/// A single dequantisation.
void dequantize(const QuantizedWeight& weight, at::Tensor& out);

void dequantize_reference(const QuantizedWeight& weight, at::Tensor& out);

// Quantising, row by row as a file is read: make_quantized_weight, quantize_rows for every range of rows,
// are_scales_finite, and finish_nested if wanted.

/// The sizes of blocks; by default those of bitsandbytes and DeepSeek.
struct WeightBlocks {
  std::int64_t size = 64, rows = 128, columns = 128;
};

/// An empty weight for quantize_rows; 4 bits: nf4.
QuantizedWeight make_quantized_weight(WeightCode code, std::int64_t out_features, std::int64_t in_features,
                                      const at::Device& device, const WeightBlocks& blocks = {});

/// quantize_rows takes ranges of rows that start at a multiple of this.
std::int64_t row_multiple(const QuantizedWeight& weight);

/// Quantises rows [begin, begin + rows.size(0)) of the matrix. rows [n, D] fp32, bf16 or fp16, on the device of the
/// weight; strided or not. begin and n are multiples of row_multiple, except in the last range. Several threads may
/// call it with different rows.
///   4 bits  scale = largest |w| of the block; code of fl(w * fl(1 / scale)): nearest value of nf4's map, ties to the
///           lower one. A block of zeros has scale 0 and the code of zero.
///   int8    scale = largest |fp16(w)| of the row; code = rint(fl(fp16(w) * fl(127 * fl(1 / scale)))), 0 in a row of
/// zeros.
///   fp8     scale = fl(largest |w| of the tile / 448), 1 in a tile of zeros; code = fl(w / scale) rounded to nearest
/// even. The native kernel is the CPU's; a GPU runs the reference. Throws ShapeError for another shape or dtype.
void quantize_rows(const at::Tensor& rows, std::int64_t begin, QuantizedWeight& weight);

void quantize_rows_reference(const at::Tensor& rows, std::int64_t begin, QuantizedWeight& weight);

/// False if an element of the matrix was NaN or infinite, or, for int8, too large for fp16: each makes the scale of its
/// block non-finite. Call it after the last row and before finish_nested. Reads the scales only; on a GPU it waits.
bool are_scales_finite(const QuantizedWeight& weight);

/// Nested quantisation of the fp32 scales of a 4-bit weight, as bitsandbytes' compress_statistics: offset = mean of the
/// scales (by ATen on their device); scale - offset in blocks of 256 by dynamic_map(true), to the nearest value, ties
/// to the even code. On a GPU it waits.
void finish_nested(QuantizedWeight& weight);

}  // namespace lora_train::kernels
