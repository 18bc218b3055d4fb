#include <array>
#include <limits>

#include "kernels/adamw/adamw_parts.h"
#include "lora_train/kernels/quantized_weight/codes.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr AdamWOptions kOptions{0.875, 0.75, 1e-8, 0.05};
constexpr double kRate = 1e-2, kCorrection1 = 0.25, kCorrection2 = 0.49, kClip = 0.5;

/// Coded blocks: whole ones, a short one, a whole one between 16 bytes. Then two with fp32 moments.
const std::vector<MomentBlock> kBlocks = {{0, 256, 0},   {256, 256, 0}, {512, 3, 0},
                                          {515, 256, 1}, {771, 17, 1},  {788, 256, 0}};
constexpr std::int64_t kNumCoded = 4, kCount = 1044;

struct State {
  Guarded<float> params{1, kCount}, grads{1, kCount}, m_scales{1, kNumCoded}, v_scales{1, kNumCoded}, m{1, 512},
      v{1, 512};
  Guarded<std::uint8_t> m_codes{1, 256 * kNumCoded}, v_codes{1, 256 * kNumCoded};
  KernelArray<MomentBlock> blocks{kBlocks};
  Guarded<double> scalars{1, kNumStepScalars}, zeroed{1, num_adamw_8bit_partials(6)};
  AdamW8bitGroups groups{2, {1, 4}, {0.05, 0}};

  State() { fill(); }
  void fill() {
    params.fill_uniform(1);
    grads.fill_uniform(2);
    grads.data()[300] = 1e-9F;  // in a block whose moments are zeros
    grads.data()[301] = -1e-9F;
    m.fill_uniform(3);
    v.fill([](auto, auto i) { return static_cast<float>(1 + i % 7) / 7; });
    m_scales.fill([](auto, auto i) { return i == 1 ? 0.0F : 0.5F; });
    v_scales.fill([](auto, auto i) { return i == 1 ? 0.0F : 4.0F; });
    m_codes.fill([](auto, auto i) { return static_cast<float>(i * 37 % 256); });
    v_codes.fill([](auto, auto i) { return static_cast<float>(i * 91 % 256); });
    const std::array<double, kNumStepScalars> values = {3.0, 1.0, kRate, kCorrection1, kCorrection2, 0, kClip, 0, -1};
    std::copy(values.begin(), values.end(), scalars.data());
  }
  void step() {
    const AdamW8bitBuffers buffers = {params.data(),   grads.data(),    m_codes.data(),     v_codes.data(),
                                      m_scales.data(), v_scales.data(), m.data(),           v.data(),
                                      blocks.data(),   kNumCoded,       std::ssize(kBlocks)};
    adamw_8bit_step_cuda(buffers, groups, kOptions, 771, zeroed.data(), scalars.data(), nullptr);
    wait_for_kernels();
  }
  bool is_intact() {
    return params.is_intact() && grads.is_intact() && m_scales.is_intact() && v_scales.is_intact() && m.is_intact() &&
           v.is_intact() && m_codes.is_intact() && v_codes.is_intact() && scalars.is_intact() && zeroed.is_intact();
  }
};

int nearest(const float* values, double x) {
  int best = 0;
  for (int code = 1; code < 256; ++code) {
    if (std::abs(x - static_cast<double>(values[code])) < std::abs(x - static_cast<double>(values[best]))) best = code;
  }
  return best;
}

TEST(AdamW8bitCuda, FollowsTheFormula) {
  State s;
  const std::vector<float> p = s.params.values(), g = s.grads.values(), fp32_m = s.m.values(), fp32_v = s.v.values();
  const std::vector<float> m_scales = s.m_scales.values(), v_scales = s.v_scales.values();
  const auto m_codes = s.m_codes.values(), v_codes = s.v_codes.values();
  s.step();
  std::vector<double> want(p.size());
  std::int64_t num_zeroed = 0;
  for (std::size_t b = 0; b < kBlocks.size(); ++b) {
    const MomentBlock& block = kBlocks[b];
    const bool is_coded = b < kNumCoded;
    std::array<double, 256> m{}, v{};
    double largest_m = 0, largest_v = 0;
    for (std::size_t i = 0; i < 256; ++i) {
      const std::size_t state = (is_coded ? b : b - kNumCoded) * 256 + i;
      const auto at = static_cast<std::size_t>(block.begin) + i;
      const bool is_inside = i < static_cast<std::size_t>(block.count);
      const double grad = is_inside ? kClip * static_cast<double>(g[at]) : 0;
      const double old_m =
          static_cast<double>(is_coded ? kSignedMap.values[m_codes[state]] * m_scales[b] : fp32_m[state]);
      const double old_v =
          static_cast<double>(is_coded ? kUnsignedMap.values[v_codes[state]] * v_scales[b] : fp32_v[state]);
      m[i] = old_m * 0.875 + 0.125 * grad;
      v[i] = old_v * 0.75 + 0.25 * grad * grad;
      largest_m = std::max(largest_m, std::abs(m[i]));
      largest_v = std::max(largest_v, v[i]);
      if (!is_inside) continue;
      const double rate = kRate * (block.group == 1 ? 4 : 1), decay = block.group == 1 ? 1 : 1 - rate * 0.05;
      want[at] = (static_cast<double>(p[at]) - rate * 0.7 / kCorrection1 * m[i] / (std::sqrt(v[i]) + 0.7e-8)) * decay;
    }
    if (!is_coded) continue;
    EXPECT_NEAR(s.m_scales.at(0, static_cast<std::int64_t>(b)), largest_m, 1e-6 * largest_m);
    EXPECT_NEAR(s.v_scales.at(0, static_cast<std::int64_t>(b)), largest_v, 1e-6 * largest_v);
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint8_t v_code = s.v_codes.data()[b * 256 + i];
      EXPECT_NEAR(s.m_codes.data()[b * 256 + i], nearest(kSignedMap.values, m[i] / largest_m), 1) << b << " " << i;
      EXPECT_NEAR(v_code, nearest(kUnsignedMap.values, v[i] / largest_v), 1) << b << " " << i;
      num_zeroed += v[i] > 0 && v_code == 0 ? 1 : 0;
    }
  }
  EXPECT_TRUE(is_near(
      s.params, 1, kCount, [&](auto, auto i) { return want[static_cast<std::size_t>(i)]; }, 1e-6));
  EXPECT_EQ(s.m_codes.data()[300], 127);
  EXPECT_EQ(s.m_codes.data()[301], 126) << "a negative moment stays negative";
  EXPECT_GE(num_zeroed, 2);
  EXPECT_NEAR(s.scalars.data()[kZeroedMoments], static_cast<double>(num_zeroed) / 771, 1e-12);
  EXPECT_TRUE(s.is_intact());
}

TEST(AdamW8bitCuda, HasTheSameBitsInBothOrders) {
  State s;
  run_in_both_orders(s.params, [&] {
    s.fill();
    s.step();
  });
  run_in_both_orders(s.m_codes, [&] {
    s.fill();
    s.step();
  });
}

TEST(AdamW8bitCuda, WritesNothingWhenTheFlagIsSet) {
  State s;
  s.scalars.data()[kNonFinite] = 1;
  const auto p = s.params.values(), m = s.m.values(), m_scales = s.m_scales.values();
  const auto m_codes = s.m_codes.values(), v_codes = s.v_codes.values();
  s.step();
  EXPECT_EQ(p, s.params.values());
  EXPECT_EQ(m, s.m.values());
  EXPECT_EQ(m_scales, s.m_scales.values());
  EXPECT_EQ(m_codes, s.m_codes.values());
  EXPECT_EQ(v_codes, s.v_codes.values());
  EXPECT_EQ(s.scalars.data()[kZeroedMoments], -1);
}

}  // namespace
}  // namespace lora_train::kernels
