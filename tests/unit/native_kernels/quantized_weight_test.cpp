#include <memory>

#include "kernels/quantized_weight/quantized_weight_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  WeightCode code;
  std::int64_t num_rows, width, gap;
  bool is_aligned, is_nested;
};

// Odd widths, misaligned rows, blocks that cross rows, more than one block of threads, matrices of nothing.
const std::vector<Shape> kShapes = {
    {WeightCode::k4Bit, 1, 1, 0, true, false},     {WeightCode::k4Bit, 5, 7, 1, true, true},
    {WeightCode::k4Bit, 70, 136, 16, true, false}, {WeightCode::k4Bit, 70, 136, 8, true, true},
    {WeightCode::k4Bit, 9, 64, 0, false, true},    {WeightCode::kInt8, 3, 5, 3, true, false},
    {WeightCode::kInt8, 70, 136, 8, true, false},  {WeightCode::kFp8, 33, 40, 8, true, false},
    {WeightCode::kFp8, 9, 17, 1, true, false},     {WeightCode::kFp8, 70, 136, 1, true, false},
    {WeightCode::k4Bit, 0, 8, 0, true, false},     {WeightCode::kFp8, 3, 0, 8, true, false}};
constexpr std::int32_t kBlockShift = 4, kNestedShift = 3, kRowShift = 2, kColumnShift = 3;

/// A matrix with random codes and scales.
template <class To>
struct Matrix {
  Matrix(const Shape& shape, unsigned seed)
      : s(shape),
        codes(static_cast<std::size_t>(s.num_rows * s.width + 1)),
        scales(static_cast<std::size_t>(s.num_rows * s.width + 1)),
        scale_codes(scales.size()),
        map(256),
        to(s.num_rows, s.width, s.gap, s.is_aligned) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::uint8_t>(generator() % 127);  // in fp8 no NaN
      if (generator() % 2 == 0) codes[i] = static_cast<std::uint8_t>(codes[i] | 128);
      scales[i] = uniform(generator);
      scale_codes[i] = static_cast<std::uint8_t>(generator());
    }
    for (std::size_t i = 0; i < map.size(); ++i) map[i] = uniform(generator);
  }
  WeightView view() const {
    WeightView view{};
    view.code = s.code;
    view.num_rows = s.num_rows;
    view.width = s.width;
    view.codes = codes.data();
    view.map = map.data();
    view.scales = s.is_nested ? static_cast<const void*>(scale_codes.data()) : scales.data();
    view.nested_scales = s.is_nested ? scales.data() : nullptr;
    view.nested_map = map.data();
    view.nested_offset = 0.3F;
    view.tiles_per_row = (s.width + (1 << kColumnShift) - 1) >> kColumnShift;
    view.block_shift = s.code == WeightCode::kFp8 ? kRowShift : kBlockShift;
    view.nested_shift = s.code == WeightCode::kFp8 ? kColumnShift : kNestedShift;
    return view;
  }
  float want(std::int64_t n, std::int64_t d) const {
    const auto i = static_cast<std::size_t>(n * s.width + d);
    if (s.code == WeightCode::kInt8) {
      volatile float scale = scales[static_cast<std::size_t>(n)] * (1.0F / 127.0F);
      return static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
    }
    if (s.code == WeightCode::kFp8) {
      const std::int64_t tiles = (s.width + 7) / 8;
      const int exponent = codes[i] >> 3 & 15, mantissa = codes[i] & 7;
      const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                            : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      return (codes[i] >= 128 ? -magnitude : magnitude) * scales[static_cast<std::size_t>(n / 4 * tiles + d / 8)];
    }
    const std::size_t block = i / 16;
    volatile float scale = scales[block];
    if (s.is_nested) {
      volatile float product = map[scale_codes[block]] * scales[block / 8];
      scale = product + 0.3F;
    }
    return map[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * scale;
  }

  Shape s;
  KernelArray<std::uint8_t> codes;
  KernelArray<float> scales;
  KernelArray<std::uint8_t> scale_codes;
  KernelArray<float> map;
  Guarded<To> to;
};

/// All shapes in one launch.
template <class To>
struct Matrices {
  explicit Matrices(const std::vector<Shape>& shapes) : segments(shapes.size()) {
    std::vector<std::int32_t> owners;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      all.push_back(std::make_unique<Matrix<To>>(shapes[i], static_cast<unsigned>(i)));
      segments[i] = dequant_segment(all[i]->view(), all[i]->to.rows(), std::ssize(owners));
      owners.insert(owners.end(), static_cast<std::size_t>(num_blocks(segments[i])), static_cast<std::int32_t>(i));
    }
    segment_of_block = std::make_unique<KernelArray<std::int32_t>>(owners);
  }
  void run() {
    dequantize_cuda<To>(segments.data(), segment_of_block->data(), static_cast<std::int64_t>(segment_of_block->size()),
                        nullptr);
  }

  std::vector<std::unique_ptr<Matrix<To>>> all;
  KernelArray<DequantSegment> segments;
  std::unique_ptr<KernelArray<std::int32_t>> segment_of_block;
};

template <class To>
class DequantizeCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(DequantizeCuda, Elements);

TYPED_TEST(DequantizeCuda, MultipliesInFloatAndRoundsOnce) {
  Matrices<TypeParam> matrices(kShapes);
  EXPECT_GT(matrices.segment_of_block->size(), kShapes.size() - 2);
  run_in_both_orders(matrices.all[2]->to, [&] { matrices.run(); });
  for (auto& m : matrices.all) {
    for (std::int64_t n = 0; n < m->s.num_rows; ++n) {
      for (std::int64_t d = 0; d < m->s.width; ++d) {
        ASSERT_EQ(load(&m->to[n][d]), rounded_to<TypeParam>(m->want(n, d)))
            << static_cast<int>(m->s.code) << ", " << m->s.width << " wide: " << n << ", " << d;
      }
    }
    EXPECT_TRUE(m->to.is_intact());
  }
}

TYPED_TEST(DequantizeCuda, CarriesInfinityAndNaN) {
  Matrices<TypeParam> matrices({{WeightCode::kFp8, 4, 16, 0, true, false}});
  Matrix<TypeParam>& m = *matrices.all[0];
  m.codes[3] = 0x7F;
  m.codes[4] = 0xFF;
  m.scales[1] = INFINITY;
  matrices.run();
  wait_for_kernels();
  EXPECT_TRUE(std::isnan(m.to.at(0, 3)) && std::isnan(m.to.at(0, 4)));
  EXPECT_FALSE(std::isfinite(m.to.at(0, 8)));
  EXPECT_TRUE(std::isfinite(m.to.at(0, 0)));
}

/// Plain matrices of From, times 0.7: one element, odd, misaligned, narrow as adapter columns, of many blocks, empty.
template <class From, class To>
void check_plain_segments() {
  const std::vector<std::array<std::int64_t, 5>> shapes = {
      // rows, width, gaps of from and to, aligned
      {1, 1, 0, 0, 1}, {5, 7, 1, 3, 1}, {70, 136, 8, 16, 1}, {9, 64, 0, 0, 0}, {300, 16, 0, 24, 1}, {0, 8, 0, 0, 1}};
  std::vector<std::unique_ptr<Guarded<From>>> from;
  std::vector<std::unique_ptr<Guarded<To>>> to;
  KernelArray<DequantSegment> segments(shapes.size());
  std::vector<std::int32_t> owners;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto [rows, width, from_gap, to_gap, is_aligned] = shapes[i];
    from.push_back(std::make_unique<Guarded<From>>(rows, width, from_gap, is_aligned != 0));
    to.push_back(std::make_unique<Guarded<To>>(rows, width, to_gap, is_aligned != 0));
    from[i]->fill_uniform(static_cast<unsigned>(i));
    segments[i] = plain_segment(from[i]->read(), 0.7F, to[i]->rows(), rows, width, std::ssize(owners));
    owners.insert(owners.end(), static_cast<std::size_t>(num_blocks(segments[i])), static_cast<std::int32_t>(i));
  }
  KernelArray<std::int32_t> segment_of_block(owners);
  run_in_both_orders(
      *to[2], [&] { dequantize_cuda<To>(segments.data(), segment_of_block.data(), std::ssize(owners), nullptr); });
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (std::int64_t n = 0; n < shapes[i][0]; ++n) {
      for (std::int64_t d = 0; d < shapes[i][1]; ++d) {
        ASSERT_EQ(load(&(*to[i])[n][d]), rounded_to<To>(load(&(*from[i])[n][d]) * 0.7F)) << i << ": " << n << ", " << d;
      }
    }
    EXPECT_TRUE(to[i]->is_intact());
  }
}

TYPED_TEST(DequantizeCuda, PlainSegmentsAreMultipliedInFloatAndRoundedOnce) {
  check_plain_segments<float, TypeParam>();
  check_plain_segments<Bf16, TypeParam>();
}

TYPED_TEST(DequantizeCuda, OfNothingLaunchesNothing) {
  const auto before = num_launches();
  Matrices<TypeParam>({{WeightCode::k4Bit, 0, 8, 0, true, false}, {WeightCode::kInt8, 1, 0, 0, true, false}}).run();
  EXPECT_EQ(num_launches(), before);
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
    for (std::int64_t row = 0; row < weight.num_rows; row += 1 + row / 5) {
      for (const std::int64_t pack : {row * per_row, row * per_row + per_row - 1}) {
        ASSERT_EQ(static_cast<std::int64_t>(static_cast<std::uint64_t>(pack) * s.multiplier >> s.shift), row)
            << per_row;
      }
    }
    const std::int64_t last = weight.num_rows * per_row - 1;
    ASSERT_EQ(static_cast<std::int64_t>(static_cast<std::uint64_t>(last) * s.multiplier >> s.shift), last / per_row);
  }
}

}  // namespace
}  // namespace lora_train::kernels
