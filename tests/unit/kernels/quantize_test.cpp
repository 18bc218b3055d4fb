#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "quantized_weight/quantized_weight_parts.h"
#include "quantized_weights.h"
#include "support/kernel_test.h"
#include "support/tensors.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct QuantizationGolden {
  std::string code;
  int64_t rows, width;
  std::vector<int64_t> input, codes, scales;
};
struct NestedGolden {
  std::vector<int64_t> scales, nested_scales;
  int64_t offset;
};
#include "goldens/quantized_weight.inc"

/// Quantised by the native kernel in ranges of rows, and by the reference at once: the same bits.
void expect_same_codes(const Format& format, const at::Tensor& w) {
  const int64_t O = w.size(0), D = w.size(1);
  QuantizedWeight pieces = empty_weight(format, O, D), whole = empty_weight(format, O, D);
  const int64_t step = std::min(2 * row_multiple(pieces), O);
  for (int64_t begin = 0; begin < O; begin += step) {
    quantize_rows(w.narrow(0, begin, std::min(step, O - begin)), begin, pieces);
  }
  quantize_rows_reference(w, 0, whole);
  EXPECT_TRUE(at::equal(pieces.codes.view(at::kByte), whole.codes.view(at::kByte)))
      << static_cast<int>(format.code) << ": " << w.sizes() << " " << w.scalar_type();
  EXPECT_TRUE(at::equal(pieces.scales, whole.scales)) << static_cast<int>(format.code) << ": " << w.sizes();
  EXPECT_TRUE(are_scales_finite(pieces));
}

TEST(QuantizeRows, IsTheReferenceBitForBitInPieces) {
  for (const Format& format : kFormats) {
    if (format.is_nested) continue;
    for (const auto& [O, D] : kShapes) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        // Some blocks of zeros, some magnitudes below all others.
        const auto w = uniform({O, D}, 7).pow(5).mul(3).masked_fill(uniform({O, 1}, 8) > 0.6, 0);
        expect_same_codes(format, with_row_gaps(w.to(dtype)));
      }
    }
  }
}

TEST(QuantizeRows, DecodesToTheNearestValue) {
  const auto w = uniform({64, 256}, 9);
  for (const auto& [code, error] : std::vector<std::pair<WeightCode, double>>{
           {WeightCode::k4Bit, 0.16}, {WeightCode::kInt8, 0.0042}, {WeightCode::kFp8, 0.0358}}) {
    QuantizedWeight weight = empty_weight({code}, 64, 256);
    quantize_rows(w, 0, weight);
    auto out = at::empty({64, 256});
    dequantize(weight, out);
    const double worst = (out - w).abs().max().item<double>();
    EXPECT_LT(worst, error) << static_cast<int>(code);
    EXPECT_GT(worst, error / 2) << static_cast<int>(code);
  }
}

std::vector<int64_t> values_of(const at::Tensor& t) {
  const auto values = t.contiguous().flatten();
  const at::Tensor bits = values.element_size() == 1 ? values.view(at::kByte).to(at::kLong)
                                                     : values.view(at::kInt).to(at::kLong).bitwise_and(0xFFFFFFFFL);
  return {bits.const_data_ptr<int64_t>(), bits.const_data_ptr<int64_t>() + bits.numel()};
}

TEST(QuantizeRows, GivesTheCodesOfTheTorchPort) {
  const std::map<std::string, WeightCode> codes = {
      {"nf4", WeightCode::k4Bit}, {"int8", WeightCode::kInt8}, {"fp8", WeightCode::kFp8}};
  for (const auto& golden : kQuantizationGoldens) {
    const auto w = at::tensor(golden.input, at::kLong).to(at::kInt).view(at::kFloat).view({golden.rows, golden.width});
    for (const auto quantize : {&quantize_rows, &quantize_rows_reference}) {
      QuantizedWeight weight = empty_weight({codes.at(golden.code)}, golden.rows, golden.width);
      quantize(w, 0, weight);
      EXPECT_EQ(values_of(weight.codes), golden.codes) << golden.code;
      EXPECT_EQ(values_of(weight.scales), golden.scales) << golden.code;
    }
  }
}

TEST(QuantizeRows, PacksTheFirstElementHigh) {
  QuantizedWeight weight = empty_weight({WeightCode::k4Bit}, 1, 64);
  quantize_rows(at::arange(64).to(at::kFloat).div(32).sub(1).view({1, 64}), 0, weight);
  std::string hex;
  for (const int64_t byte : values_of(weight.codes)) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  EXPECT_EQ(hex, "000001111111122222333344455566677788999aaabbbccccddddeeeeeeeffff");
}

TEST(QuantizeRows, ZerosGetTheCodeOfZero) {
  for (const auto& [code, byte] : std::vector<std::pair<WeightCode, int>>{
           {WeightCode::k4Bit, 0x77}, {WeightCode::kInt8, 0}, {WeightCode::kFp8, 0}}) {
    QuantizedWeight weight = empty_weight({code}, 3, 65);
    quantize_rows(at::zeros({3, 65}), 0, weight);
    EXPECT_TRUE((weight.codes.view(at::kByte) == byte).all().item<bool>()) << static_cast<int>(code);
    EXPECT_TRUE((weight.scales == (code == WeightCode::kFp8 ? 1 : 0)).all().item<bool>());
    EXPECT_TRUE(are_scales_finite(weight));
    auto out = at::ones({3, 65});
    dequantize(weight, out);
    EXPECT_EQ(out.abs().max().item<float>(), 0);
  }
}

TEST(QuantizeRows, AnElementThatIsNoNumberShowsInTheScales) {
  for (const Format& format : kFormats) {
    if (format.is_nested) continue;
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      for (const auto quantize : {&quantize_rows, &quantize_rows_reference}) {
        QuantizedWeight weight = empty_weight(format, 4, 70);
        auto w = uniform({4, 70}, 10);
        w[3][69] = bad;
        quantize(w, 0, weight);
        EXPECT_FALSE(are_scales_finite(weight)) << static_cast<int>(format.code) << " " << bad;
      }
    }
  }
  QuantizedWeight weight = empty_weight({WeightCode::kInt8}, 1, 8);
  quantize_rows(at::full({1, 8}, 70000.0), 0, weight);  // more than fp16 holds
  EXPECT_FALSE(are_scales_finite(weight));
}

TEST(QuantizeRows, RefusesRangesThatCutBlocks) {
  QuantizedWeight weight = empty_weight({WeightCode::k4Bit}, 9, 80);
  EXPECT_EQ(row_multiple(weight), 4);
  EXPECT_THROW(quantize_rows(at::ones({4, 80}), 2, weight), ShapeError);
  EXPECT_THROW(quantize_rows(at::ones({2, 80}), 2, weight), ShapeError);
  EXPECT_THROW(quantize_rows(at::ones({3, 80}), 0, weight), ShapeError);
  EXPECT_THROW(quantize_rows(at::ones({4, 80}), 8, weight), ShapeError);
  EXPECT_THROW(quantize_rows(at::ones({4, 64}), 0, weight), ShapeError);
  quantize_rows(at::ones({1, 80}), 8, weight);
  EXPECT_EQ(row_multiple(empty_weight({WeightCode::k4Bit}, 9, 63)), 64);
  EXPECT_EQ(row_multiple(empty_weight({WeightCode::kInt8}, 9, 63)), 1);
  EXPECT_EQ(row_multiple(empty_weight({WeightCode::kFp8}, 9, 63)), 128);
}

TEST(FinishNested, GivesTheCodesOfTheTorchPort) {
  const auto i = at::arange(257 * 64);
  const auto w = ((i * 7919).remainder(2001) - 1000).to(at::kFloat).div(1024) *
                 at::pow(2.0, -i.div(64, "floor").remainder(5).to(at::kFloat));
  QuantizedWeight weight = empty_weight({WeightCode::k4Bit}, 257, 64);
  quantize_rows(w.view({257, 64}), 0, weight);
  const at::Tensor scales = weight.scales;
  finish_nested(weight);
  EXPECT_EQ(values_of(weight.scales), kNestedGolden.scales);
  EXPECT_EQ(values_of(weight.nested_scales), kNestedGolden.nested_scales);
  EXPECT_EQ(bits_of_float(weight.nested_offset), kNestedGolden.offset);
  check_quantized_weight(weight);
  // Half of the widest gap of the map, of the largest distance from the mean.
  const auto decoded = weight.nested_map.index_select(0, weight.scales.to(at::kLong)) *
                           weight.nested_scales.repeat_interleave(256).narrow(0, 0, 257) +
                       weight.nested_offset;
  EXPECT_LT((decoded - scales).abs().max().item<float>(), 0.008 * weight.nested_scales.max().item<float>());
}

TEST(FinishNested, EqualScalesAreTheOffset) {
  QuantizedWeight weight = empty_weight({WeightCode::k4Bit}, 4, 64);
  quantize_rows(at::full({4, 64}, 0.25), 0, weight);
  finish_nested(weight);
  auto out = at::empty({4, 64});
  dequantize(weight, out);
  EXPECT_TRUE((out == 0.25).all().item<bool>());
}

TEST(Maps, HaveTheValuesOfBitsandbytes) { EXPECT_EQ(nf4_map()[15].item<float>(), 1); }

TEST(E4m3, EveryCodeAndRoundingAreThoseOfAten) {
  const auto codes = at::arange(256).to(at::kByte);
  const auto want = codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
  for (int64_t i = 0; i < 256; ++i) {
    const float got = e4m3_to_float(static_cast<std::uint32_t>(i) << 24), expected = want[i].item<float>();
    EXPECT_EQ(std::isnan(got), std::isnan(expected)) << i;
    if (std::isnan(expected)) continue;
    EXPECT_EQ(bits_of_float(got), bits_of_float(expected)) << i;
  }
  // Values of the map, what lies in their middle, neighbours of both, and magnitudes above the largest.
  const auto finite = want.index_select(0, (codes.bitwise_and(127) != 127).nonzero().squeeze(1));
  const auto ties = std::get<0>(finite.sort());
  const auto middle = (ties.narrow(0, 0, 253) + ties.narrow(0, 1, 253)) / 2;
  const auto points = at::cat({ties, middle, uniform({1000}, 1).pow(9).mul(500)});
  const auto all = at::cat(
      {points, at::nextafter(points, at::full_like(points, 1e9)), at::nextafter(points, at::full_like(points, -1e9))});
  const auto rounded = all.clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte);
  for (int64_t i = 0; i < all.numel(); ++i) {
    ASSERT_EQ(float_to_e4m3(all[i].item<float>()), rounded[i].item<int>()) << all[i].item<float>();
  }
}

}  // namespace
}  // namespace lora_train::kernels
