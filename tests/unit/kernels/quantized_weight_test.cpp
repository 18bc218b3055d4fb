#include "lora_train/kernels/quantized_weight/quantized_weight.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lora_train/kernels/cast/cast.h"
#include "lora_train/kernels/quantized_weight/codes.h"
#include "quantized_weight/quantized_weight_parts.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Format {
  WeightCode code;
  bool is_nested = false;
  int64_t block_size = 64, block_rows = 128, block_columns = 128;
};
const std::vector<Format> kFormats = {
    {WeightCode::kFp8},  {WeightCode::k4Bit, true},      {WeightCode::kFp8, false, 64, 4, 2},
    {WeightCode::k4Bit}, {WeightCode::k4Bit, true, 16},  {WeightCode::kFp8, false, 64, 1, 100000},
    {WeightCode::kInt8}, {WeightCode::k4Bit, false, 16}, {WeightCode::kFp8, false, 64, 100000, 100000}};

int64_t ceil_divide(int64_t count, int64_t by) { return (count + by - 1) / by; }

/// fp32 tensors with a scale for every block, set up for quantize_rows.
QuantizedWeight empty_weight(const Format& format, int64_t O, int64_t D) {
  return make_quantized_weight(format.code, O, D, at::kCPU,
                               {format.block_size, format.block_rows, format.block_columns});
}

const std::vector<std::pair<int64_t, int64_t>> kShapes = {{1, 1},    {3, 7},     {5, 64},   {33, 96},  {4, 80},
                                                          {2, 1001}, {130, 136}, {7, 1288}, {129, 200}};

at::Tensor random_bytes(at::IntArrayRef sizes, uint64_t seed) {
  at::manual_seed(seed);
  return at::randint(256, sizes, at::kLong).to(at::kByte);
}

/// Random codes and scales, as none of our quantisers need have made them. The map is a folder's own.
QuantizedWeight random_weight(const Format& format, int64_t O, int64_t D) {
  QuantizedWeight weight = empty_weight(format, O, D);
  at::Tensor bytes = random_bytes(weight.codes.sizes(), 1);
  if (format.code == WeightCode::kFp8) bytes.masked_fill_(bytes.bitwise_and(127) == 127, 5);  // no NaN
  weight.codes.copy_(bytes.view(weight.codes.scalar_type()));
  weight.scales = uniform(weight.scales.sizes(), 2);
  if (format.code != WeightCode::k4Bit) return weight;
  weight.map = uniform({16}, 3);
  if (!format.is_nested) return weight;
  weight.nested_block_size = 32;
  weight.nested_scales = uniform({ceil_divide(weight.scales.numel(), 32)}, 4);
  weight.nested_map = uniform({256}, 5);
  weight.nested_offset = 0.3F;
  weight.scales = random_bytes(weight.scales.sizes(), 6);
  return weight;
}

QuantizedWeight on(const at::Device& device, QuantizedWeight weight) {
  for (auto* t : {&weight.codes, &weight.scales, &weight.map, &weight.nested_scales, &weight.nested_map}) {
    if (t->defined()) *t = t->to(device);
  }
  return weight;
}

/// One element by the formula; every operation rounds to fp32.
float element(const QuantizedWeight& weight, int64_t n, int64_t d) {
  const auto at_index = [](const at::Tensor& t, int64_t i) { return t.flatten()[i].item<float>(); };
  const int64_t i = n * weight.in_features + d;
  if (weight.code == WeightCode::kInt8) {
    volatile float scale = at_index(weight.scales, n) * (1.0F / 127.0F);
    return at_index(weight.codes, i) * scale;
  }
  if (weight.code == WeightCode::kFp8) {
    const auto row = weight.scales[n / weight.block_rows];
    return at_index(weight.codes.to(at::kFloat), i) * row[d / weight.block_columns].item<float>();
  }
  const int byte = weight.codes[i / 2].item<int>();
  const int64_t block = i / weight.block_size;
  volatile float scale = at_index(weight.scales, block);
  if (weight.is_nested()) {
    volatile float product = at_index(weight.nested_map, weight.scales[block].item<int>()) *
                             at_index(weight.nested_scales, block / weight.nested_block_size);
    scale = product + weight.nested_offset;
  }
  return at_index(weight.map, i % 2 == 0 ? byte >> 4 : byte & 15) * scale;
}

class Dequantize : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Dequantize);

TEST_P(Dequantize, IsTheReferenceBitForBit) {
  for (const Format& format : kFormats) {
    for (const auto& [O, D] : kShapes) {
      const QuantizedWeight weight = on(place.device, random_weight(format, O, D));
      auto out = place.empty({O, D}), want = place.empty({O, D});
      dequantize(weight, out);
      dequantize_reference(weight, want);
      EXPECT_TRUE(rows_are_equal(out, want)) << static_cast<int>(format.code) << ": " << O << " x " << D;
    }
  }
}

TEST_P(Dequantize, ManyMatricesInOneRunAndAgainAfterTheirCodesChanged) {
  std::vector<QuantizedWeight> weights;
  std::vector<at::Tensor> outs;
  Dequantizations all;
  for (const Format& format : kFormats) {
    const int64_t D = 40 + 8 * std::ssize(weights) + std::ssize(weights) % 2;
    weights.push_back(on(place.device, random_weight(format, 301, D)));
    outs.push_back(place.empty({301, D}));
    all.add(weights.back(), outs.back());
  }
  at::manual_seed(3);
  at::Tensor column = at::randn({301, 16}).to(at::Device(place.device));
  const at::Tensor plain = place.put(at::randn({7, 40}));
  const at::Tensor half = at::randn({70, 136}).to(at::Device(place.device), at::kBFloat16);
  auto column_out = place.empty({301, 16}), plain_out = place.empty({7, 40}), half_out = place.empty({70, 136});
  all.add(column, 0.7, column_out);
  all.add(plain, 1.0, plain_out);
  all.add(half, 0.7, half_out);
  for (int run = 0; run < 2; ++run) {
    all.run();
    auto want_column = place.empty({301, 16});
    scaled_copy_reference(column, 0.7, want_column);
    EXPECT_TRUE(rows_are_equal(column_out, want_column));
    EXPECT_TRUE(rows_are_equal(plain_out, plain));
    EXPECT_CLOSE(half_out, f64(half) * 0.7, std::max(tolerance(at::kFloat), tolerance(place.dtype)));
    column.mul_(0.5);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      auto want = place.empty(outs[i].sizes());
      dequantize_reference(weights[i], want);
      EXPECT_TRUE(rows_are_equal(outs[i], want)) << i;
      auto bytes = weights[i].codes.view(at::kByte);
      bytes.copy_(bytes.bitwise_and(0x5F) + 3);
    }
  }
}

TEST_P(Dequantize, CarriesInfinityAndNaN) {
  for (const int64_t D : {16, 15}) {
    QuantizedWeight weight = random_weight({WeightCode::kFp8, false, 64, 4, 8}, 4, D);
    weight.codes.view(at::kByte)[0][3] = 0x7F;
    weight.codes.view(at::kByte)[0][4] = 0xFF;
    weight.scales[0][1] = HUGE_VAL;
    auto out = place.empty({4, D});
    dequantize(on(place.device, weight), out);
    const at::Tensor is_finite = out[0].isfinite().cpu();
    EXPECT_TRUE(out[0].slice(0, 3, 5).isnan().all().item<bool>());
    EXPECT_TRUE(is_finite.slice(0, 0, 3).all().item<bool>() && is_finite.slice(0, 5, 8).all().item<bool>());
    EXPECT_FALSE(is_finite.slice(0, 8).any().item<bool>());
  }
}

TEST_P(Dequantize, NothingToDo) {
  Dequantizations none;
  none.run();
  auto out = place.empty({0, 8});
  dequantize(on(place.device, empty_weight({WeightCode::k4Bit}, 0, 8)), out);
}

TEST(DequantizeReference, IsTheFormula) {
  for (const Format& format : kFormats) {
    for (const auto& [O, D] : std::vector<std::pair<int64_t, int64_t>>{{3, 7}, {9, 64}}) {
      const QuantizedWeight weight = random_weight(format, O, D);
      auto out = at::empty({O, D});
      dequantize_reference(weight, out);
      for (int64_t n = 0; n < O; ++n) {
        for (int64_t d = 0; d < D; ++d) {
          ASSERT_EQ(out[n][d].item<float>(), element(weight, n, d))
              << static_cast<int>(format.code) << " " << n << ", " << d;
        }
      }
    }
  }
}

TEST(DequantizeReference, WritesHalf) {
  const QuantizedWeight weight = random_weight({WeightCode::k4Bit, true}, 5, 64);
  auto out = at::empty({5, 64}, at::kHalf), exact = at::empty({5, 64});
  dequantize(weight, out);
  dequantize(weight, exact);
  EXPECT_TRUE(at::equal(out, exact.to(at::kHalf)));
}

TEST(DequantSegment, DividesPacksByRowsExactly) {
  Bf16* const to = nullptr;
  for (const std::int64_t per_row : {1, 2, 3, 7, 448, 449, 2368, 65535, 65536, 1000003}) {
    WeightView weight{};
    weight.code = WeightCode::kInt8;
    weight.width = per_row * kDequantPack;
    weight.num_rows = ((std::int64_t{1} << 31) - 1) / per_row;
    const DequantSegment s = dequant_segment<Bf16>(weight, {to, weight.width}, 0);
    ASSERT_EQ(s.num_packs, weight.num_rows * per_row);
    const auto row_of = [&](std::int64_t pack) {
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(pack) * s.multiplier >> s.shift);
    };
    for (std::int64_t row = 0; row < weight.num_rows; row += 1 + row / 5) {
      for (const std::int64_t pack : {row * per_row, row * per_row + per_row - 1})
        ASSERT_EQ(row_of(pack), row) << per_row;
    }
    ASSERT_EQ(row_of(s.num_packs - 1), weight.num_rows - 1);
  }
}

TEST(QuantizedWeight, RefusesWhatDoesNotFit) {
  const auto refused = [](const Format& format, const auto& spoil) {
    QuantizedWeight weight = random_weight(format, 5, 64);
    check_quantized_weight(weight);
    spoil(weight);
    EXPECT_THROW(check_quantized_weight(weight), ShapeError);
  };
  const Format nested{WeightCode::k4Bit, true};
  refused(nested, [](auto& w) { w.codes = w.codes.narrow(0, 0, 159); });
  refused(nested, [](auto& w) { w.codes = w.codes.to(at::kChar); });
  refused(nested, [](auto& w) { w.map = w.map.narrow(0, 0, 15); });
  refused(nested, [](auto& w) { w.scales = w.scales.to(at::kFloat); });
  refused(nested, [](auto& w) { w.block_size = 96; });
  refused(nested, [](auto& w) { w.block_size = 128; });
  refused(nested, [](auto& w) { w.nested_map = w.nested_map.narrow(0, 0, 255); });
  refused(nested, [](auto& w) { w.nested_block_size = 0; });
  refused(nested, [](auto& w) { w.nested_scales = at::ones({2}); });
  refused({WeightCode::k4Bit}, [](auto& w) { w.scales = w.scales.to(at::kByte); });
  refused({WeightCode::kInt8}, [](auto& w) { w.scales = at::ones({64}); });
  refused({WeightCode::kInt8}, [](auto& w) { w.codes = w.codes.to(at::kByte); });
  refused({WeightCode::kFp8, false, 64, 4, 2}, [](auto& w) { w.scales = w.scales.t().contiguous(); });
  refused({WeightCode::kFp8, false, 64, 4, 2}, [](auto& w) { w.block_rows = 3; });
  refused({WeightCode::kFp8}, [](auto& w) { w.codes = w.codes.view(at::kByte); });
  const QuantizedWeight weight = random_weight(nested, 5, 64);
  auto out = at::empty({64, 5});
  EXPECT_THROW(dequantize(weight, out), ShapeError);
}

TEST(QuantizedWeight, CountsItsBytes) {
  EXPECT_EQ(bytes_of(random_weight({WeightCode::k4Bit}, 32, 64)), 1024 + 32 * 4 + 64);
  EXPECT_EQ(bytes_of(make_quantized_weight(WeightCode::kInt8, 32, 64, at::kMeta)), 2048 + 32 * 4);
  QuantizedWeight nested = make_quantized_weight(WeightCode::k4Bit, 4096, 64, at::kMeta);
  finish_nested(nested);
  EXPECT_EQ(bytes_of(nested), 4096 * 32 + 4096 + 16 * 4 + 64 + 1024);
}

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

#include "goldens/dynamic_map.inc"

long code_of(const DynamicMap& map, float x) {
  return std::count_if(std::begin(map.thresholds), std::end(map.thresholds), [&](float t) { return t < x; });
}

TEST(DynamicMap, HasTheBitsOfBitsandbytes) {
  ASSERT_EQ(kSignedMapBits.size(), 256u);
  ASSERT_EQ(kUnsignedMapBits.size(), 256u);
  for (std::size_t code = 0; code < 256; ++code) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kSignedMap.values[code]), kSignedMapBits[code]) << code;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kUnsignedMap.values[code]), kUnsignedMapBits[code]) << code;
  }
}

TEST(DynamicMap, RoundsToTheNearestCodeAndTiesToTheEvenOne) {
  for (const DynamicMap& map : {kSignedMap, kUnsignedMap}) {
    for (int code = 0; code < 255; ++code) {
      const float low = map.values[code], high = map.values[code + 1], middle = (low + high) * 0.5F;
      ASSERT_LT(low, high);
      EXPECT_EQ(code_of(map, low), code);
      EXPECT_EQ(code_of(map, std::nextafter(middle, low)), code);
      EXPECT_EQ(code_of(map, middle), code + code % 2) << "tie";
      EXPECT_EQ(code_of(map, std::nextafter(middle, high)), code + 1);
    }
    EXPECT_EQ(code_of(map, 1), 255);
  }
  EXPECT_EQ(kSignedMap.values[127], 0);
  EXPECT_EQ(kUnsignedMap.values[0], 0);
}

}  // namespace
}  // namespace lora_train::kernels
