#include "kernels/cast/cast_cuda.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t num_rows, width, from_gap, to_gap;
  bool is_aligned;
};

// Adapter columns (narrow, far apart), flat buffers that are one long row, odd widths, misaligned rows.
const std::vector<Shape> kShapes = {
    {1, 1, 0, 0, true},    {5, 7, 1, 2, true},     {300, 16, 0, 48, true}, {70, 4, 0, 12, true}, {3, 24, 8, 8, true},
    {1, 5000, 0, 0, true}, {1, 4104, 0, 0, false}, {2, 1032, 8, 16, true}, {5, 16, 1, 8, true},  {5, 16, 8, 1, true}};

struct FloatToFloat {
  using From = float;
  using To = float;
};
struct FloatToBf16 {
  using From = float;
  using To = Bf16;
};
struct Bf16ToFloat {
  using From = Bf16;
  using To = float;
};
struct Bf16ToBf16 {
  using From = Bf16;
  using To = Bf16;
};

template <class Pair>
class CastCuda : public ::testing::Test {};
using Pairs = ::testing::Types<FloatToFloat, FloatToBf16, Bf16ToFloat, Bf16ToBf16>;
TYPED_TEST_SUITE(CastCuda, Pairs);

TYPED_TEST(CastCuda, MultipliesInFloatAndRoundsOnce) {
  using To = typename TypeParam::To;
  for (const Shape& s : kShapes) {
    Guarded<typename TypeParam::From> from(s.num_rows, s.width, s.from_gap, s.is_aligned);
    Guarded<To> to(s.num_rows, s.width, s.to_gap, s.is_aligned);
    from.fill_uniform(1);
    for (const float scale : {1.0F, 0.7F}) {
      run_in_both_orders(to, [&] { scaled_copy_cuda(from.read(), scale, to.rows(), s.num_rows, s.width, nullptr); });
      for (std::int64_t n = 0; n < s.num_rows; ++n) {
        for (std::int64_t d = 0; d < s.width; ++d) {
          ASSERT_EQ(load(&to[n][d]), rounded_to<To>(load(&from[n][d]) * scale)) << n << ", " << d;
        }
      }
    }
    EXPECT_TRUE(to.is_intact() && from.is_intact());
  }
}

TEST(LongCastCuda, IsTakenInTurns) {
  constexpr std::int64_t kLong = 2 * 1024 * 512 + 77;  // 1024 blocks, 512 elements each, take three turns
  Guarded<float> from(1, kLong, 0, false);
  Guarded<Bf16> to(1, kLong, 0, false);
  from.fill_uniform(1);
  scaled_copy_cuda(from.read(), 0.5F, to.rows(), 1, kLong, nullptr);
  for (std::int64_t d = 0; d < kLong; ++d) ASSERT_EQ(load(to[0] + d), rounded_to<Bf16>(from[0][d] * 0.5F)) << d;
  EXPECT_TRUE(to.is_intact());
}

TYPED_TEST(CastCuda, CarriesInfinityAndNaN) {
  Guarded<typename TypeParam::From> from(1, 8);
  Guarded<typename TypeParam::To> to(1, 8);
  from.fill([](auto, auto d) { return d == 2 ? INFINITY : d == 5 ? NAN : 1.0F; });
  scaled_copy_cuda(from.read(), -1.0F, to.rows(), 1, 8, nullptr);
  EXPECT_EQ(to.at(0, 2), -INFINITY);
  EXPECT_TRUE(std::isnan(to.at(0, 5)));
  EXPECT_EQ(to.at(0, 4), -1.0);
}

TYPED_TEST(CastCuda, NothingToDoLaunchesNothing) {
  Guarded<typename TypeParam::From> from(1, 8);
  Guarded<typename TypeParam::To> to(1, 8);
  const auto before = num_launches();
  scaled_copy_cuda(from.read(), 1.0F, to.rows(), 0, 8, nullptr);
  scaled_copy_cuda(from.read(), 1.0F, to.rows(), 1, 0, nullptr);
  EXPECT_EQ(num_launches(), before);
}

}  // namespace
}  // namespace lora_train::kernels
