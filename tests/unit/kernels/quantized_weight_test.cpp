#include "lora_train/kernels/quantized_weight/quantized_weight.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/kernels/cast/cast.h"
#include "quantized_weight/quantized_weight_parts.h"
#include "quantized_weights.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

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
  const auto place = GetParam();
  for (const Format& format : kFormats) {
    for (const auto& [O, D] : kShapes) {
      const QuantizedWeight weight = on(place.device, random_weight(format, O, D));
      auto out = place.empty({O, D}), want = place.empty({O, D});
      dequantize(weight, out);
      dequantize_reference(weight, want);
      EXPECT_TRUE(at::equal(out, want)) << static_cast<int>(format.code) << ": " << O << " x " << D;
      EXPECT_TRUE(gaps_are_untouched(out));
    }
  }
}

TEST_P(Dequantize, ManyMatricesInOneRunAndAgainAfterTheirCodesChanged) {
  const auto place = GetParam();
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
    EXPECT_TRUE(at::equal(column_out, want_column) && gaps_are_untouched(column_out));
    EXPECT_TRUE(at::equal(plain_out, plain) && gaps_are_untouched(plain_out));
    EXPECT_CLOSE(half_out, f64(half) * 0.7, std::max(tolerance(at::kFloat), tolerance(place.dtype)));
    column.mul_(0.5);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      auto want = place.empty(outs[i].sizes());
      dequantize_reference(weights[i], want);
      EXPECT_TRUE(at::equal(outs[i], want)) << i;
      EXPECT_TRUE(gaps_are_untouched(outs[i]));
      auto bytes = weights[i].codes.view(at::kByte);
      bytes.copy_(bytes.bitwise_and(0x5F) + 3);
    }
  }
}

TEST_P(Dequantize, CarriesInfinityAndNaN) {
  const auto place = GetParam();
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
  const auto place = GetParam();
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

}  // namespace
}  // namespace lora_train::kernels
