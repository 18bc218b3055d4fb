#include "lora/merge_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "lora_train/base/half.h"
#include "lora_train/model/weights/init_model.h"

namespace lora_train::lora {
namespace {

using storage::DType;

struct Case {
  std::int64_t O, I, R;
  std::vector<float> weight;
  AdapterValues adapter;

  Case(std::int64_t rows, std::int64_t columns, std::int64_t rank)
      : O(rows), I(columns), R(rank), weight(model::normal_weights(1, "w", 0, O * I, 1)) {
    adapter = {{AdapterKind::kLora, 0, "q_proj", R, 0.7},
               {model::normal_weights(1, "a", 0, R * I, 1), model::normal_weights(1, "b", 0, O * R, 1)}};
  }
  double exact(std::int64_t row, std::int64_t column) const {
    double sum = 0;
    for (std::int64_t k = 0; k < R; ++k) {
      sum += double{adapter.tensors[model::kLoraB][static_cast<std::size_t>(row * R + k)]} *
             adapter.tensors[model::kLoraA][static_cast<std::size_t>(k * I + column)];
    }
    return weight[static_cast<std::size_t>(row * I + column)] + adapter.spec.scale * sum;
  }
  WeightToMerge fp32() const {
    return {{reinterpret_cast<const char*>(weight.data()), weight.size() * 4}, DType::kF32, O, I};
  }
};

TEST(MergeWeight, AddsTheScaledProduct) {
  for (const auto& [O, I, R] : {std::tuple{1, 1, 1}, {5, 3, 2}, {7, 1030, 5}, {130, 2049, 17}, {4, 1024, 64}}) {
    const Case test(O, I, R);
    std::string out;
    ASSERT_TRUE(merge_weight(test.fp32(), &test.adapter, DType::kF32, out));
    const auto got = read_floats(out, DType::kF32);
    ASSERT_EQ(got.size(), static_cast<std::size_t>(O * I));
    for (std::int64_t i = 0; i < O * I; ++i) {
      const double exact = test.exact(i / I, i % I);
      ASSERT_NEAR(got[static_cast<std::size_t>(i)], exact,
                  1e-6 * (1.0 + std::abs(exact)) * std::sqrt(static_cast<double>(R)))
          << O << "x" << I << " rank " << R << " element " << i;
    }
  }
}

TEST(MergeWeight, RoundsOnceToTheTarget) {
  const Case test(9, 301, 3);
  std::string exact, bf16, f16;
  ASSERT_TRUE(merge_weight(test.fp32(), &test.adapter, DType::kF32, exact));
  ASSERT_TRUE(merge_weight(test.fp32(), &test.adapter, DType::kBF16, bf16));
  ASSERT_TRUE(merge_weight(test.fp32(), &test.adapter, DType::kF16, f16));
  const auto values = read_floats(exact, DType::kF32);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bf16.data() + 2 * i, 2);
    EXPECT_EQ(bits, to_bf16(values[i]));
    std::memcpy(&bits, f16.data() + 2 * i, 2);
    EXPECT_EQ(bits, to_f16(values[i]));
  }
}

TEST(MergeWeight, ReadsHalfPrecisionAtAnyAddress) {
  const Case test(3, 5, 2);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::string half;
    ASSERT_TRUE(merge_weight(test.fp32(), nullptr, dtype, half));
    const std::string shifted = "x" + half;
    const WeightToMerge weight{std::string_view(shifted).substr(1), dtype, 3, 5};
    std::string out;
    ASSERT_TRUE(merge_weight(weight, nullptr, dtype, out));
    EXPECT_EQ(out, half);
  }
}

TEST(MergeWeight, SaysWhenTheResultIsNotFinite) {
  Case test(6, 40, 2);
  test.weight[100] = 70000;
  std::string out;
  EXPECT_FALSE(merge_weight(test.fp32(), nullptr, DType::kF16, out));
  EXPECT_TRUE(merge_weight(test.fp32(), nullptr, DType::kBF16, out));
  test.weight[100] = 65519;
  EXPECT_TRUE(merge_weight(test.fp32(), nullptr, DType::kF16, out));
  test.weight[100] = std::nextafter(std::bit_cast<float>(0x7F7F8000U), 0.0F);  // half a unit above the largest of bf16
  EXPECT_TRUE(merge_weight(test.fp32(), nullptr, DType::kBF16, out));
  test.weight[100] = std::bit_cast<float>(0x7F7F8000U);
  EXPECT_FALSE(merge_weight(test.fp32(), nullptr, DType::kBF16, out));
  EXPECT_TRUE(merge_weight(test.fp32(), nullptr, DType::kF32, out));
  test.weight[239] = NAN;
  EXPECT_FALSE(merge_weight(test.fp32(), nullptr, DType::kBF16, out));
  EXPECT_FALSE(merge_weight(test.fp32(), nullptr, DType::kF32, out));
}

TEST(MergeTokenRows, ReplacesRowsAndFillsNewOnesWithTheMean) {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 9};  // 3 rows of 2
  const WeightToMerge packed{{reinterpret_cast<const char*>(weight.data()), 24}, DType::kF32, 3, 2};
  std::string out;
  ASSERT_TRUE(merge_token_rows(packed, {{4, 0}, {10, 11, 20, 21}, 6}, DType::kF32, out));
  EXPECT_EQ(read_floats(out, DType::kF32), (std::vector<float>{20, 21, 3, 4, 5, 9, 3, 5, 10, 11, 3, 5}));
  ASSERT_TRUE(merge_token_rows(packed, {{1}, {0.1F, 0.2F}, 3}, DType::kBF16, out));
  EXPECT_EQ(read_floats(out, DType::kBF16), (std::vector<float>{1, 2, 0.10009765625F, 0.2001953125F, 5, 9}));
  EXPECT_FALSE(merge_token_rows(packed, {{1}, {1e30F, 0}, 3}, DType::kF16, out));
}

}  // namespace
}  // namespace lora_train::lora
