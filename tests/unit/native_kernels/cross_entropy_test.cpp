#include <limits>

#include "kernels/cross_entropy/cross_entropy_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr float kScale = 0.125F;

struct Shape {
  std::int64_t num_rows, V;
  bool is_aligned;
};
// Rows shorter than what lies before the first 16 bytes, rows that all begin somewhere else, and rows of several
// groups.
const std::vector<Shape> kShapes = {{1, 1, true},     {3, 2, false},    {3, 7, true},
                                    {9, 33, true},    {2, 64, true},    {3, 1031, false},
                                    {2, 16384, true}, {2, 20011, true}, {1, 40003, false}};

template <class T>
class CrossEntropyCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(CrossEntropyCuda, Elements);

template <class T>
struct Chunk {
  Guarded<T> logits;
  Guarded<std::int32_t> targets;
  Guarded<float> losses, confidence;
  KernelArray<bool> correct;
  std::int64_t num_rows, V;

  explicit Chunk(const Shape& s)
      : logits(s.num_rows, s.V, 0, s.is_aligned),
        targets(1, s.num_rows),
        losses(1, s.num_rows),
        confidence(1, s.num_rows),
        correct(static_cast<std::size_t>(s.num_rows)),
        num_rows(s.num_rows),
        V(s.V) {
    fill();
    targets.fill([&](auto, auto m) { return static_cast<float>(m * 7919 % V); });
  }
  void fill() {
    logits.fill_uniform(1);
    logits.fill([&](auto m, auto v) { return 8 * load(&logits[m][v]); });
  }
  void run(bool write_gradient, bool has_statistics = true, const float* weights = nullptr) {
    const KernelArray<double> denominator = {1 / static_cast<double>(kScale)};
    cross_entropy_in_place_cuda(logits.rows(), targets.data(), weights, write_gradient ? denominator.data() : nullptr,
                                losses.data(), has_statistics ? correct.data() : nullptr,
                                has_statistics ? confidence.data() : nullptr, num_rows, V, nullptr);
    wait_for_kernels();
  }
  bool is_intact() { return logits.is_intact() && targets.is_intact() && losses.is_intact() && confidence.is_intact(); }
};

/// In fp64, of the logits as they are now.
struct Oracle {
  std::vector<double> gradient, losses, confidence;
  std::vector<bool> correct;

  template <class T>
  explicit Oracle(Chunk<T>& chunk) {
    for (std::int64_t m = 0; m < chunk.num_rows; ++m) {
      std::int64_t first = 0;
      for (std::int64_t v = 1; v < chunk.V; ++v) first = chunk.logits.at(m, v) > chunk.logits.at(m, first) ? v : first;
      const std::int64_t target = chunk.targets.data()[m];
      const double largest = chunk.logits.at(m, first);
      double sum = 0;
      for (std::int64_t v = 0; v < chunk.V; ++v) sum += std::exp(chunk.logits.at(m, v) - largest);
      losses.push_back(std::log(sum) + largest - chunk.logits.at(m, target));
      confidence.push_back(1 / sum);
      correct.push_back(first == target);
      for (std::int64_t v = 0; v < chunk.V; ++v) {
        const double probability = std::exp(chunk.logits.at(m, v) - largest) / sum;
        gradient.push_back((probability - (v == target ? 1 : 0)) * static_cast<double>(kScale));
      }
    }
  }
};

/// Every element against its own size: beside a target's gradient all others are small.
template <class T>
std::int64_t num_wrong(Guarded<T>& got, const std::vector<double>& want, std::int64_t num_rows, std::int64_t V) {
  const double tolerance = sizeof(T) == 2 ? 4e-3 : 3e-6;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < num_rows * V; ++i) {
    const double value = want[static_cast<std::size_t>(i)];
    wrong += std::abs(got.at(i / V, i % V) - value) <= tolerance * std::abs(value) ? 0 : 1;
  }
  return wrong;
}

auto rows_of(const std::vector<double>& values) {
  return [&values](std::int64_t, std::int64_t m) { return values[static_cast<std::size_t>(m)]; };
}

TYPED_TEST(CrossEntropyCuda, LossStatisticsAndGradient) {
  for (const Shape& shape : kShapes) {
    Chunk<TypeParam> chunk(shape);
    const Oracle want(chunk);
    const auto before = chunk.logits.values();
    chunk.run(false);
    EXPECT_EQ(0, std::memcmp(before.data(), chunk.logits.values().data(), before.size() * sizeof(TypeParam)));
    run_in_both_orders(chunk.logits, [&] {
      chunk.fill();
      chunk.run(true);
    });
    if (shape.V > 1) {  // else loss and gradient are zero
      EXPECT_TRUE(is_near(chunk.losses, 1, shape.num_rows, rows_of(want.losses), 2e-6));
      EXPECT_EQ(num_wrong(chunk.logits, want.gradient, shape.num_rows, shape.V), 0) << shape.V;
    }
    EXPECT_TRUE(is_near(chunk.confidence, 1, shape.num_rows, rows_of(want.confidence), 2e-6));
    for (std::size_t m = 0; m < want.correct.size(); ++m) EXPECT_EQ(chunk.correct[m], want.correct[m]) << m;
    EXPECT_TRUE(chunk.is_intact());
  }
}

TYPED_TEST(CrossEntropyCuda, WeightsScaleTheGradientOfTheirRow) {
  Chunk<TypeParam> chunk({9, 1031, false});
  Oracle want(chunk);
  Guarded<float> weights(1, 9);
  weights.fill([](auto, auto m) { return m == 4 ? 0.0F : 0.75F * static_cast<float>(m - 2); });
  for (std::int64_t i = 0; i < 9 * 1031; ++i) want.gradient[static_cast<std::size_t>(i)] *= weights.at(0, i / 1031);
  chunk.run(true, true, weights.data());
  EXPECT_TRUE(is_near(chunk.losses, 1, 9, rows_of(want.losses), 2e-6)) << "no weight in them";
  EXPECT_EQ(num_wrong(chunk.logits, want.gradient, 9, 1031), 0);
  EXPECT_TRUE(chunk.is_intact() && weights.is_intact());
}

TYPED_TEST(CrossEntropyCuda, TheFirstOfEqualsIsCorrect) {
  Chunk<TypeParam> chunk({5, 1031, true});
  chunk.logits.fill([](auto, auto v) { return v == 700 || v == 900 || v == 1030 ? 3.0F : 0.0F; });
  const std::int32_t targets[] = {700, 900, 1030, 5, 0};
  std::copy(targets, targets + 5, chunk.targets.data());
  chunk.run(false);
  for (std::size_t m = 0; m < 5; ++m) EXPECT_EQ(chunk.correct[m], m == 0) << m;
}

TYPED_TEST(CrossEntropyCuda, LeavesOutStatisticsThatNobodyWants) {
  Chunk<TypeParam> chunk({3, 129, true});
  const Oracle want(chunk);
  chunk.run(false, false);
  EXPECT_TRUE(is_near(chunk.losses, 1, 3, rows_of(want.losses), 2e-6));
  EXPECT_TRUE(std::isnan(chunk.confidence.at(0, 0)));
}

TYPED_TEST(CrossEntropyCuda, StandsInfinityAndCarriesNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Chunk<TypeParam> chunk({4, 1031, true});
  // Masked logits; very low ones; a NaN; an infinite one.
  chunk.logits.fill([](auto m, auto v) {
    if (m == 0) return v % 2 == 0 ? -kInfinity : 1.0F;
    if (m == 1) return -1e30F;
    return v == 600 ? (m == 2 ? std::numeric_limits<float>::quiet_NaN() : kInfinity) : 1.0F;
  });
  const std::int32_t targets[] = {5, 5, 5, 5};
  std::copy(targets, targets + 4, chunk.targets.data());
  chunk.run(true);
  EXPECT_NEAR(chunk.losses.at(0, 0), std::log(515.0), 1e-5);
  EXPECT_EQ(chunk.logits.at(0, 4), 0);
  EXPECT_NEAR(chunk.losses.at(0, 1), std::log(1031.0), 1e-5);
  EXPECT_TRUE(std::isnan(chunk.losses.at(0, 2)));
  EXPECT_FALSE(std::isfinite(chunk.losses.at(0, 3)));
}

TEST(AddLossesCuda, AddsInFp64) {
  for (const std::int64_t rows : {0, 1, 33, 1024, 5003}) {
    Guarded<float> losses(1, rows), weights(1, rows);
    losses.fill_uniform(3);
    weights.fill_uniform(4);
    for (const bool is_weighted : {false, true}) {
      Guarded<double> sum(1, 1);
      run_in_both_orders(sum, [&] {
        sum.data()[0] = 1e6;
        add_losses_cuda(losses.data(), is_weighted ? weights.data() : nullptr, rows, sum.data(), nullptr);
      });
      double want = 1e6;
      for (std::int64_t m = 0; m < rows; ++m) want += losses.at(0, m) * (is_weighted ? weights.at(0, m) : 1);
      EXPECT_NEAR(sum.data()[0], want, 1e-8) << rows;
      EXPECT_TRUE(sum.is_intact() && losses.is_intact() && weights.is_intact());
    }
  }
}

}  // namespace
}  // namespace lora_train::kernels
