#include <memory>

#include "kernels/cast/cast_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t num_rows, width, from_gap, to_gap;
  bool is_aligned;
};

// Adapter columns (narrow, far apart), flat buffers that are one long row, odd widths, misaligned rows, nothing at all; blocks end
// inside of rows and between them.
const std::vector<Shape> kShapes = {
    {1, 1, 0, 0, true},    {5, 7, 1, 2, true},     {300, 16, 0, 48, true}, {70, 4, 0, 12, true}, {3, 24, 8, 8, true},
    {1, 5000, 0, 0, true}, {1, 4104, 0, 0, false}, {2, 1032, 8, 16, true}, {5, 16, 1, 8, true},  {5, 16, 8, 1, true},
    {0, 8, 0, 0, true},    {700, 64, 0, 8, true},  {700, 15, 0, 3, true},  {33, 17, 0, 8, true}, {3, 0, 8, 8, true}};

template <class To>
class ScaledCopiesCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(ScaledCopiesCuda, Elements);

/// All shapes in one launch.
template <class To>
struct Copies {
  std::vector<std::unique_ptr<Guarded<float>>> from;
  std::vector<std::unique_ptr<Guarded<To>>> to;
  std::unique_ptr<Guarded<CopySegment>> segments;
  std::unique_ptr<Guarded<std::int32_t>> segment_of_block;
  std::int64_t blocks = 0;

  static float scale(std::size_t i) { return i % 2 == 0 ? 0.7F : 1.0F; }

  explicit Copies(const std::vector<Shape>& shapes) {
    segments = std::make_unique<Guarded<CopySegment>>(1, std::ssize(shapes));
    std::vector<std::int32_t> owners;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Shape& s = shapes[i];
      from.push_back(std::make_unique<Guarded<float>>(s.num_rows, s.width, s.from_gap, s.is_aligned));
      to.push_back(std::make_unique<Guarded<To>>(s.num_rows, s.width, s.to_gap, s.is_aligned));
      from[i]->fill_uniform(static_cast<unsigned>(i));
      CopySegment& segment = segments->data()[i];
      segment = copy_segment<To>(from[i]->read(), scale(i), to[i]->rows(), s.num_rows, s.width, blocks);
      blocks += num_blocks(segment);
      owners.insert(owners.end(), static_cast<std::size_t>(num_blocks(segment)), static_cast<std::int32_t>(i));
    }
    segment_of_block = std::make_unique<Guarded<std::int32_t>>(1, blocks);
    std::copy(owners.begin(), owners.end(), segment_of_block->data());
  }
  void run() { scaled_copies_cuda<To>(segments->data(), segment_of_block->data(), blocks, nullptr); }
};

TYPED_TEST(ScaledCopiesCuda, MultiplyInFloatAndRoundOnce) {
  Copies<TypeParam> copies(kShapes);
  EXPECT_GT(copies.blocks, std::ssize(kShapes));
  const auto before = num_launches();
  run_in_both_orders(*copies.to[11], [&] { copies.run(); });
  EXPECT_EQ(num_launches() - before, before < 0 ? 0 : 2);
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    for (std::int64_t n = 0; n < kShapes[i].num_rows; ++n) {
      for (std::int64_t d = 0; d < kShapes[i].width; ++d) {
        const float want = rounded_to<TypeParam>((*copies.from[i])[n][d] * copies.scale(i));
        ASSERT_EQ(load(&(*copies.to[i])[n][d]), want) << i << ": " << n << ", " << d;
      }
    }
    EXPECT_TRUE(copies.to[i]->is_intact() && copies.from[i]->is_intact());
  }
}

TYPED_TEST(ScaledCopiesCuda, CarryInfinityAndNaN) {
  Copies<TypeParam> copies({{1, 8, 0, 0, true}});
  copies.from[0]->fill([](auto, auto d) { return d == 2 ? INFINITY : d == 5 ? NAN : 1.0F; });
  copies.run();
  EXPECT_EQ(copies.to[0]->at(0, 2), INFINITY);
  EXPECT_TRUE(std::isnan(copies.to[0]->at(0, 5)));
}

TYPED_TEST(ScaledCopiesCuda, OfNothingLaunchNothing) {
  const auto before = num_launches();
  Copies<TypeParam>({{0, 8, 0, 0, true}, {1, 0, 0, 0, true}}).run();
  EXPECT_EQ(num_launches(), before);
}

}  // namespace
}  // namespace lora_train::kernels
