#include <array>
#include <limits>

#include "kernels/adamw/adamw_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr AdamWOptions kOptions{0.9, 0.98, 1e-8, 0.05};
constexpr double kLearningRateHere = 1e-2, kClip = 0.7;

struct Size {
  std::int64_t n;
  double lr_factor;
  bool is_aligned;
};
// Shorter than a pack, not a multiple of one, and more than all threads take at once.
const std::vector<Size> kSizes = {{1, 1, true}, {3, 16, true}, {5, 1, false}, {4099, 1, true}, {560001, 16, false}};

/// In double: the scalars of a step in which nothing went wrong yet.
struct Scalars : Guarded<double> {
  Scalars() : Guarded(1, kNumStepScalars) {
    const std::array<double, kNumStepScalars> values = {3.0, 1.0, kLearningRateHere, 0.271, 0.058808, 0, kClip, 0};
    std::copy(values.begin(), values.end(), data());
  }
};

struct Buffers {
  Guarded<float> params, grads, exp_avg, exp_avg_sq;

  explicit Buffers(const Size& s)
      : params(1, s.n, 0, s.is_aligned),
        grads(1, s.n, 0, s.is_aligned),
        exp_avg(1, s.n, 0, s.is_aligned),
        exp_avg_sq(1, s.n, 0, s.is_aligned) {
    fill();
    grads.fill_uniform(2);
  }
  void fill() {
    params.fill_uniform(1);
    exp_avg.fill_uniform(3);
    exp_avg_sq.fill([](auto, auto i) { return static_cast<float>(1 + i % 7) / 7; });
  }
  void step(const Size& s, Scalars& scalars) {
    adamw_step_cuda(params.data(), grads.data(), exp_avg.data(), exp_avg_sq.data(), s.n, kOptions, s.lr_factor,
                    scalars.data(), nullptr);
  }
  bool is_intact() { return params.is_intact() && grads.is_intact() && exp_avg.is_intact() && exp_avg_sq.is_intact(); }
};

TEST(AdamWCuda, FollowsTheFormula) {
  for (const Size& size : kSizes) {
    Scalars scalars;
    Buffers b(size);
    const std::vector<float> p = b.params.values(), m = b.exp_avg.values(), v = b.exp_avg_sq.values();
    b.step(size, scalars);
    const auto at = [](const std::vector<float>& values, auto i) {
      return static_cast<double>(values[static_cast<std::size_t>(i)]);
    };
    const auto want_m = [&](auto, auto i) { return 0.9 * at(m, i) + 0.1 * kClip * b.grads.at(0, i); };
    const auto want_v = [&](auto, auto i) { return 0.98 * at(v, i) + 0.02 * std::pow(kClip * b.grads.at(0, i), 2); };
    const auto want_p = [&](auto n, auto i) {
      const double rate = kLearningRateHere * size.lr_factor, decay = 1 - rate * kOptions.weight_decay;
      return at(p, i) * decay - rate / 0.271 * want_m(n, i) / (std::sqrt(want_v(n, i) / 0.058808) + 1e-8);
    };
    EXPECT_TRUE(is_near(b.exp_avg, 1, size.n, want_m, 1e-6)) << size.n;
    EXPECT_TRUE(is_near(b.exp_avg_sq, 1, size.n, want_v, 1e-6)) << size.n;
    EXPECT_TRUE(is_near(b.params, 1, size.n, want_p, 1e-6)) << size.n;
    EXPECT_TRUE(b.is_intact() && scalars.is_intact());
  }
}

TEST(AdamWCuda, HasTheSameBitsInBothOrders) {
  const Size size{9001, 1, true};
  Scalars scalars;
  Buffers b(size);
  run_in_both_orders(b.params, [&] {
    b.fill();
    b.step(size, scalars);
  });
}

TEST(AdamWCuda, WritesNothingWhenTheFlagIsSet) {
  for (const bool is_aligned : {true, false}) {
    const Size size{1003, 1, is_aligned};
    Scalars scalars;
    scalars.data()[kNonFinite] = 1;
    Buffers b(size);
    const auto p = b.params.values(), m = b.exp_avg.values(), v = b.exp_avg_sq.values();
    b.step(size, scalars);
    EXPECT_EQ(p, b.params.values());
    EXPECT_EQ(m, b.exp_avg.values());
    EXPECT_EQ(v, b.exp_avg_sq.values());
  }
}

TEST(GradNormCuda, MeasuresAndClips) {
  for (const Size& size :
       {Size{0, 1, true}, {1, 1, false}, {3, 1, true}, {4097, 1, true}, {9001, 1, false}, {300001, 1, true}}) {
    Guarded<float> grads(1, size.n, 0, size.is_aligned);
    grads.fill_uniform(5);
    double sum = 0;
    for (std::int64_t i = 0; i < size.n; ++i) sum += grads.at(0, i) * grads.at(0, i);
    const double norm = std::sqrt(sum);
    for (const double max_norm : size.n < 300000 ? std::vector<double>{0.0, 0.5, 1e6} : std::vector<double>{0.5}) {
      Guarded<double> partials(1, num_norm_partials(size.n));
      Scalars scalars;
      measure_gradients_cuda(grads.data(), size.n, max_norm, partials.data(), scalars.data(), nullptr);
      EXPECT_NEAR(scalars.data()[kGradNorm], norm, 1e-12 * norm) << size.n;
      EXPECT_NEAR(scalars.data()[kClipFactor], max_norm == 0 ? 1 : std::min(1.0, max_norm / (norm + 1e-6)), 1e-12);
      EXPECT_EQ(scalars.data()[kNonFinite], 0);
      EXPECT_TRUE(partials.is_intact() && scalars.is_intact() && grads.is_intact());
    }
  }
}

static_assert(num_norm_partials(0) == 1 && num_norm_partials(4097) == 2);
static_assert(num_norm_partials(std::int64_t{1} << 40) == kMaxNormPartials);

TEST(GradNormCuda, HasTheSameBitsInBothOrders) {
  Guarded<float> grads(1, 20001);
  grads.fill_uniform(5);
  Guarded<double> partials(1, num_norm_partials(20001));
  Guarded<double> norm(1, 1);
  run_in_both_orders(norm, [&] {
    Scalars scalars;
    measure_gradients_cuda(grads.data(), 20001, 1, partials.data(), scalars.data(), nullptr);
    norm.data()[0] = scalars.data()[kGradNorm];
  });
}

TEST(GradNormCuda, SetsTheFlagForGood) {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  Guarded<float> grads(1, 5000);
  Guarded<double> partials(1, num_norm_partials(5000));
  for (const float bad : kBad) {
    Scalars scalars;
    const auto run = [&] { measure_gradients_cuda(grads.data(), 5000, 1, partials.data(), scalars.data(), nullptr); };
    grads.fill([&](auto, auto i) { return i == 4998 ? bad : 1.0F; });
    run();
    EXPECT_EQ(scalars.data()[kNonFinite], 1);
    grads.fill([](auto, auto) { return 1.0F; });
    run();
    EXPECT_EQ(scalars.data()[kNonFinite], 1);
    scalars.data()[kNonFinite] = 0;
    scalars.data()[kLossSum] = static_cast<double>(bad);
    run();
    EXPECT_EQ(scalars.data()[kNonFinite], 1);
  }
}

}  // namespace
}  // namespace lora_train::kernels
